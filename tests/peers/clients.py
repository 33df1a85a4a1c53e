"""Run programs that use KenLM on mgpu_ngram, compare them with KenLM, and write the table of docs/kenlm.md.

python clients.py FOLDER       FOLDER receives virtual environments, packages, repositories and models (3 GB)
python clients.py use NAME FOLDER    one client, in an environment that has `kenlm`: prints its results as JSON

Packages come from PyPI, repositories from GitHub or from the mirror that $GITHUB names. A client without tests that run
offline is used as its documentation shows, once with the module kenlm of PyPI and once with `mgpu_ngram.kenlm` in its
place. It passes if all results are equal. `make clients` calls this file, which is not a part of the tests.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GITHUB = os.environ.get("GITHUB", "https://github.com")
BEGIN, END = "<!-- written by make clients -->", "<!-- end -->"
ENGLISH = ROOT / "benchmarks" / "english.txt"
CHINESE = (
    "今 天 天 气 很 好\n我 们 去 公 园 玩\n他 的 身 体 很 好\n少 先 队 员 应 该 为 老 人 让 座\n今 天 我 们 很 高 兴\n"
    * 20
)


def use_cc_net(folder: Path) -> Any:
    """CCNet's pipeline of SentencePiece and DocLM over documents, with a model en.arpa.bin."""
    sys.path.insert(0, str(folder / "cc_net"))
    from cc_net import perplexity

    pieces = perplexity.MultiSentencePiece({"en": folder / "en.sp.model"}, field="raw_content", normalize=True)
    scores = perplexity.DocLM({"en": folder / "en.arpa.bin"}, field="tokenized", normalize=False)
    with pieces, scores:
        found = [scores(pieces({"raw_content": text, "language": "en"})) for text in paragraphs()]
    return [document["perplexity"] for document in found]


def use_datatrove(folder: Path) -> Any:
    """The step of a pipeline that computes CCNet's perplexity; its models are local instead of downloaded."""
    from datatrove.data import Document
    from datatrove.pipeline.stats import CCNetPerplexityStats
    from datatrove.utils import perplexity

    perplexity.cached_asset_path_or_download = lambda url: str(folder / url.rpartition("/")[2])
    step = CCNetPerplexityStats(str(folder / "stats"), model_dataset="wikipedia", language="en")
    return [step.extract_stats(Document(text=text, id="0")) for text in paragraphs()]


def use_bigscience(folder: Path) -> Any:
    """The perplexity of ROOTS' filter (ac_dc/filtering.py), with a model en.arpa.bin; fastText is not needed."""
    sys.modules["fasttext"] = types.ModuleType("fasttext")
    sys.path.insert(0, str(folder / "data_tooling" / "ac_dc"))
    from filtering import Filtering, LoadParameters

    pieces = LoadParameters.load_sentencepiece_model("en", str(folder / "en.sp.model"))
    model = LoadParameters.load_kenlm_model("en", str(folder / "en.arpa.bin"))
    return [Filtering.compute_perplexity_score(text, pieces, model) for text in paragraphs()]


def use_pycorrector(folder: Path) -> Any:
    """Its detector of wrong characters, with a model people.klm of Chinese characters; PyTorch is not needed."""
    package, spec = types.ModuleType("pycorrector"), importlib.util.find_spec("pycorrector")
    package.__path__ = spec.submodule_search_locations  # without its __init__, which imports PyTorch
    sys.modules["pycorrector"] = package
    from pycorrector.detector import Detector

    detector = Detector(language_model_path=str(folder / "people.klm"))
    lines = ["今天天器很好", "少先队员因该为老人让坐", "我们去公园完"]
    return [
        [detector.detect(line) for line in lines],
        [detector.ngram_score(list(line)) for line in lines],
        [detector.ppl_score(list(line)) for line in lines],
    ]


def use_transformers(folder: Path) -> Any:
    """A processor of speech with a language model: built, saved, loaded again, used on random logits."""
    import numpy as np
    from pyctcdecode import build_ctcdecoder
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ProcessorWithLM

    labels = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.json").write_text(json.dumps({label: i for i, label in enumerate(labels)}))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    unigrams = (folder / "words.txt").read_text().split()
    decoder = build_ctcdecoder(["", "<s>", "</s>", "⁇", " ", *labels[5:]], str(folder / "words.arpa"), unigrams)
    made = Wav2Vec2ProcessorWithLM(Wav2Vec2FeatureExtractor(), tokenizer, decoder)
    saved = tempfile.mkdtemp(dir=folder)
    made.save_pretrained(saved)
    again = Wav2Vec2ProcessorWithLM.from_pretrained(saved)
    logits = np.random.default_rng(0).normal(0, 3, (8, 60, len(labels)))
    found = [processor.batch_decode(logits, num_processes=1) for processor in (made, again)]
    return [[output.text, np.round(output.lm_score, 3).tolist()] for output in found]


def use_flashlight(folder: Path) -> Any:
    """Its search for words of a lexicon in random frames: with its own KenLM, and with our class in its place."""
    import kenlm
    import numpy as np
    from flashlight.lib.text import decoder
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary

    if kenlm.Model.__module__.startswith("mgpu_ngram"):
        sys.path.insert(0, str(ROOT / "examples"))
        from flashlight_kenlm import KenLM
    words = sorted(set((folder / "words.txt").read_text().split()))
    letters = ["|", *sorted(set("".join(words)))]
    dictionary = Dictionary()
    for word in (*words, "<unk>"):
        dictionary.add_entry(word)
    model, trie = KenLM(str(folder / "words.arpa"), dictionary), decoder.Trie(len(letters), 0)
    start = model.start(False)
    for word in words:
        index = dictionary.get_index(word)
        trie.insert([*map(letters.index, word), 0], index, model.score(start, index)[1])
    trie.smear(decoder.SmearingMode.MAX)
    options = decoder.LexiconDecoderOptions(
        beam_size=50, beam_size_token=20, beam_threshold=50.0, lm_weight=1.0, word_score=0.0, unk_score=-math.inf,
        sil_score=0.0, log_add=False, criterion_type=decoder.CriterionType.ASG,
    )  # fmt: skip
    unknown, transitions = dictionary.get_index("<unk>"), [0.0] * len(letters) ** 2
    search = decoder.LexiconDecoder(options, trie, model, 0, -1, unknown, transitions, False)
    rng, found = np.random.default_rng(0), []
    for frames in (20, 60, 120):
        emissions = rng.normal(0, 2, (frames, len(letters))).astype(np.float32)
        for result in search.decode(emissions.ctypes.data, frames, len(letters))[:5]:
            found.append([[dictionary.get_entry(word) for word in result.words if word >= 0], result.score])
    return found


def use_nemo(folder: Path) -> Any:
    """The processes of NeMo's train_kenlm.py: text through a pipe into lmplz, then build_binary trie."""
    binaries, arpa, out = Path(os.environ["KENLM_BIN"]), folder / "nemo.tmp.arpa", folder / "nemo.kenlm"
    (folder / "nemo.txt").write_text(ENGLISH.read_text().replace("<", "("))
    text = subprocess.Popen(["cat", str(folder / "nemo.txt")], stdout=subprocess.PIPE)
    flags = ["-o", "3", "--arpa", str(arpa), "", "--prune", "0", "0", "1"]  # the "" is NeMo's, for models of characters
    subprocess.run([binaries / "lmplz", *flags], stdin=text.stdout, check=True)
    subprocess.run([binaries / "build_binary", "trie", str(arpa), str(out)], check=True)
    import kenlm

    model = kenlm.Model(str(out))
    return [round(model.score(line), 4) for line in ENGLISH.read_text().splitlines()[:50]]


@dataclass(frozen=True)
class Client:
    """How a client is installed and used.

    use         makes its results, which JSON can hold
    what        runs, for the table
    packages    of PyPI
    bare        packages that declare kenlm or PyTorch, installed without what they declare
    repository  of GitHub, which has the client; `folder` of it is enough
    """

    use: Callable[[Path], Any]
    what: str
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    repository: str = ""
    folder: str = ""

    @property
    def version(self) -> str:
        pinned = [name.partition("==")[2] for name in (*self.packages, *self.bare) if "==" in name]
        return "main" if self.repository else pinned[0] if pinned else "its calls, copied"


CLIENTS = {
    "Transformers": Client(
        use_transformers, "`Wav2Vec2ProcessorWithLM`: built, saved, loaded, `batch_decode`",
        ("transformers==4.57.1", "huggingface_hub<1"), ("pyctcdecode==0.5.0",),
    ),
    "cc_net": Client(
        use_cc_net, "`MultiSentencePiece` and `DocLM`, `en.arpa.bin`",
        ("pandas", "beautifulsoup4", "func_argparse", "requests", "typing_extensions", "psutil"),
        repository="facebookresearch/cc_net", folder="cc_net",
    ),
    "datatrove": Client(
        use_datatrove, "`CCNetPerplexityStats`, `en.arpa.bin`", ("datatrove==0.10.1", "tokenizers", "tldextract")
    ),
    "bigscience": Client(
        use_bigscience, "`compute_perplexity_score` of `ac_dc`, `en.arpa.bin`", ("emoji==1.6.1", "pandas"),
        repository="bigscience-workshop/data_tooling", folder="ac_dc",
    ),
    "pycorrector": Client(
        use_pycorrector, "`Detector`, `people.klm`", ("jieba", "pypinyin", "loguru", "six", "pyahocorasick"),
        ("pycorrector==1.1.4",),
    ),
    "flashlight-text": Client(
        use_flashlight, "`LexiconDecoder` on its own KenLM, and on the class in examples/flashlight_kenlm.py",
        ("flashlight-text==0.0.7",),
    ),
    "NeMo": Client(use_nemo, "the processes of `train_kenlm.py`: a pipe to `lmplz`, then `build_binary trie`"),
}  # fmt: skip


def paragraphs() -> list[str]:
    lines = ENGLISH.read_text().splitlines()
    return ["\n".join(lines[i : i + 5]) for i in range(0, 200, 5)]


class Workplace:
    """A folder with an environment that has mgpu_ngram and the clients, KenLM's module beside it, and models."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"

    def install(self) -> None:
        """Make the environment, the module kenlm that stands for ours, and programs with KenLM's names."""
        if not self.python.exists():
            subprocess.run([os.environ.get("PYTHON", sys.executable), "-m", "venv", self.folder / "venv"], check=True)
            self.pip("--editable", str(ROOT), "pytest", "sentencepiece")
            self.pip("--target", str(self.folder / "plain"), "kenlm==0.3.0")
            self.pip("--target", str(self.folder / "alias"), "--no-deps", str(ROOT / "examples" / "kenlm_alias"))
        (self.folder / "bin").mkdir(exist_ok=True)
        for program in ("lmplz", "query", "build_binary"):
            (self.folder / "bin" / program).unlink(missing_ok=True)
            (self.folder / "bin" / program).symlink_to(self.python.parent / f"kenlm-{program}")

    def pip(self, *words: str) -> None:
        subprocess.run([self.python, "-m", "pip", "install", "--quiet", "--no-compile", *words], check=True)

    def clone(self, repository: str, *folders: str) -> Path:
        """Copy the files of a repository, or of folders in it."""
        target = self.folder / repository.partition("/")[2]
        if not target.exists():
            flags = ["--quiet", "--depth", "1", "--filter=blob:none", "--sparse", "--no-checkout"]
            subprocess.run(["git", "clone", *flags, f"{GITHUB}/{repository}", target], check=True)
            chosen = ["set", *folders] if folders else ["disable"]
            subprocess.run(["git", "-C", target, "sparse-checkout", *chosen], check=True)
            subprocess.run(["git", "-C", target, "checkout", "--quiet"], check=True)
        return target

    def make_models(self) -> None:
        """Make en.sp.model, en.arpa.bin (probing, of its pieces), people.klm (a trie, of characters) and words.arpa."""
        train = (
            "import sentencepiece as s; s.SentencePieceTrainer.train(input={!r}, model_prefix={!r}, vocab_size=1000)"
        )
        self.run_python(train.format(str(ENGLISH), str(self.folder / "en.sp")))
        pieces = (
            "import sentencepiece as s; p = s.SentencePieceProcessor(model_file={!r})\n"
            "for line in open({!r}): print(' '.join(p.encode(line, out_type=str)))"
        )
        english = self.run_python(pieces.format(str(self.folder / "en.sp.model"), str(ENGLISH)))
        words = re.sub("[^a-z\n]+", " ", ENGLISH.read_text().lower())
        (self.folder / "words.txt").write_text(words)
        texts = {"en.arpa.bin": (english, "probing"), "people.klm": (CHINESE, "trie"), "words.arpa": (words, "")}
        for name, (text, kind) in texts.items():
            arpa = self.folder / (name if not kind else "model.arpa")
            flags = ["-o", "3", "--discount_fallback", "--arpa", arpa]
            subprocess.run([self.folder / "bin" / "lmplz", *flags], input=text.encode(), check=True)
            if kind:
                subprocess.run([self.folder / "bin" / "build_binary", kind, arpa, self.folder / name], check=True)

    def run_python(self, script: str) -> str:
        return subprocess.run([self.python, "-c", script], check=True, capture_output=True, text=True).stdout

    def test(self, client: Client, name: str) -> str:
        """Install a client; return whether its results on mgpu_ngram are those on KenLM."""
        try:
            if client.packages:
                self.pip(*client.packages)
            if client.bare:
                self.pip("--no-deps", *client.bare)
            if client.repository:
                self.clone(client.repository, client.folder)
        except subprocess.CalledProcessError as error:
            return f"skipped: {error.cmd[-1]} cannot be had"
        found = []
        for module in ("plain", "alias"):
            paths = {"PYTHONPATH": str(self.folder / module), "KENLM_BIN": str(self.folder / "bin")}
            command = [self.python, __file__, "use", name, self.folder]
            done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True)
            if done.returncode:
                last = done.stderr.strip().splitlines()[-1]
                return f"failed with {'KenLM' if module == 'plain' else 'mgpu_ngram'}: {last}"
            found.append(json.loads(done.stdout.splitlines()[-1]))
        return "passed: all results are KenLM's" if found[0] == found[1] else "failed: results are not KenLM's"

    def test_pyctcdecode(self) -> list[str]:
        """Run the tests of its main branch; return the row of the table."""
        source = self.clone("kensho-technologies/pyctcdecode")
        self.pip("pygtrie", "hypothesis", "nbconvert", "ipykernel")
        self.pip("--no-deps", str(source))  # it declares numpy<2, and runs with numpy 2
        paths = {"PYTHONPATH": str(self.folder / "alias")}
        script = f"import kenlm; kenlm.Model({str(self.folder / 'words.arpa')!r}).score('the word')"
        subprocess.run(
            [self.python, "-c", script], env=os.environ | paths, check=True
        )  # compiles, once; a test waits 20 s
        command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "pyctcdecode/tests"]
        done = subprocess.run(command, cwd=source, env=os.environ | paths, capture_output=True, text=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=source, capture_output=True, text=True)
        counts = re.findall(r"\d+ (?:passed|failed|skipped|error)", done.stdout.splitlines()[-1])
        return ["pyctcdecode", f"main, {commit.stdout.strip()}", "its own tests", ", ".join(counts) or "failed"]


def write_table(rows: list[list[str]]) -> None:
    page = ROOT / "docs" / "kenlm.md"
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = ["| client | version | what runs | result |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    page.write_text("\n".join([before + BEGIN, *lines, END]) + after)


def main() -> None:
    if sys.argv[1] == "use":
        print(json.dumps(CLIENTS[sys.argv[2]].use(Path(sys.argv[3]))))
        return
    work = Workplace(Path(sys.argv[1]).resolve())
    work.folder.mkdir(parents=True, exist_ok=True)
    work.install()
    work.make_models()
    rows = [work.test_pyctcdecode()]
    rows += [[name, client.version, client.what, work.test(client, name)] for name, client in CLIENTS.items()]
    write_table(rows)
    print(*map(" | ".join, rows), sep="\n")
    sys.exit(any(re.search("failed|error", row[-1]) for row in rows))


if __name__ == "__main__":
    main()
