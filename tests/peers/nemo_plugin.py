"""A plugin of pytest that gives NeMo's tests `NGramLM` in place of NGramGPULanguageModel: pytest -p nemo_plugin."""

import math
import sys
import tempfile
from pathlib import Path

import nemo.collections.asr.models  # noqa: F401
from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

import mgpu_ngram as ng
from mgpu_ngram.torch import NGramLM


class PeerLM(NGramLM):
    """`NGramLM` with the other constructors that NeMo's tests call."""

    @classmethod
    def from_arpa(cls, lm_path, vocab_size, normalize_unk=True):
        return cls.from_file(lm_path, vocab_size, normalize_unk)

    @classmethod
    def dummy_unigram_lm(cls, vocab_size):
        log10 = -math.log10(vocab_size)
        words = ["<s>", "</s>", "<unk>", *map(str, range(vocab_size))]
        lines = ["\\data\\", f"ngram 1={len(words)}", "", "\\1-grams:", *(f"{log10}\t{word}" for word in words), ""]
        with tempfile.TemporaryDirectory() as folder:
            arpa = Path(folder, "uniform.arpa")
            arpa.write_text("\n".join([*lines, "\\end\\", ""]))
            return cls(ng.Model.load(arpa), words[3:])


# Boosting trees are subclasses of NGramGPULanguageModel, so their modules keep it.
for name, module in list(sys.modules.items()):
    if name.startswith("nemo.") and "context_biasing" not in name and not name.endswith("ngram_lm_batched"):
        for attribute, value in list(vars(module).items()):
            if value is NGramGPULanguageModel:
                setattr(module, attribute, PeerLM)
