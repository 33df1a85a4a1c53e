"""Fill the caches of Hugging Face with what Transformers' tests of Wav2Vec2ProcessorWithLM load, without a download.

python hugging_face.py MODEL   where MODEL is the ARPA file of pyctcdecode's tests
"""

import json
import sys
from pathlib import Path

from pyctcdecode import build_ctcdecoder
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ProcessorWithLM

DECODER, PROCESSOR = "hf-internal-testing/ngram-beam-search-decoder", "hf-internal-testing/processor_with_lm"
VOCABULARY = ["|", "<pad>", "<unk>", "<s>", "</s>", *"abcdefghijk"]
# The order of these labels, with the model, gives the texts and the scores in the tests.
LABELS = ["⁇", " ", "", "<s>", "</s>", *VOCABULARY[5:]]
COMMIT = 40 * "0"


def snapshot(cache: Path, name: str) -> Path:
    """Return a new folder for the files of a repository in a cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    files = repository / "snapshots" / COMMIT
    files.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return files


caches = Path.home() / ".cache"
decoder = build_ctcdecoder(LABELS, sys.argv[1])
for name in (DECODER, PROCESSOR):
    decoder.save_to_dir(str(snapshot(caches / "pyctcdecode", name)))

files = snapshot(caches / "huggingface" / "hub", PROCESSOR)
vocabulary = files / "vocab.json"
vocabulary.write_text(json.dumps({word: id for id, word in enumerate(VOCABULARY)}))
tokenizer = Wav2Vec2CTCTokenizer(str(vocabulary), unk_token="<unk>", bos_token="<s>", eos_token="</s>")
features = Wav2Vec2FeatureExtractor(return_attention_mask=False)
Wav2Vec2ProcessorWithLM(features, tokenizer, decoder).save_pretrained(files)
