"""KenLM and gLM beside this engine, where they are: KenLM's module on words, its benchmark on ids, gLM on a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.timing import measure
from mgpu_ngram.benchmarks.harness.units import QUERIES_PER_SECOND
from mgpu_ngram.benchmarks.inputs.frequency_models import write_model
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Subject, edge_table
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.kernels.dispatch import to_host

PEER = "kenlm module, 1 thread"
TOLERANCE = 1e-5  # relative: it adds up a sentence in float32
PROGRAMS = ("build_binary", "kenlm_benchmark")  # of a KenLM that is built by CMake
IDS_TOLERANCE = 1e-3  # relative: the program adds up thousands of queries in float32
IDS_REPEATS = {"gpu": 64, "cpu": 16}  # of the ids, so that a run takes much longer than loading the model
ROUNDS = 3
GLM_KERNEL = "score/table3 gLM"
GLM_PROGRAMS = ("binarize_v2", "batch_query_v2")
GLM_TOLERANCE = 1e-4  # relative: it prints six digits


def kenlm_seconds(suite: Suite, subject: Subject, codes_T: Any, folder: Path) -> float | None:
    """A row: the module on the same text, in words, as it takes no ids; returns its seconds, None without it."""
    try:
        import kenlm
    except ImportError:
        suite.say("kenlm is not installed, so its rate is left out; pip install kenlm")
        return None
    suite.say("kenlm reads the model")
    path = folder / "peer.arpa"
    write_model(path, subject.training_T, subject.words, subject.trie.order)
    model = kenlm.Model(str(path))
    lines = sentences(to_host(codes_T), list(subject.words))
    expected = float(edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    found = sum(map(model.score, lines))
    if abs(found - expected) > TOLERANCE * abs(expected):
        raise WrongResult(f"kenlm gives log10 {found} but this engine {expected} for the same text; not timed")
    seconds = measure(lambda: sum(map(model.score, lines)), "cpu", warm_up=False)
    how: dict[str, Any] = {"items": len(codes_T), "unit": QUERIES_PER_SECOND, "notes": "words in; probing"}
    suite.add(f"score/table3 {PEER}", subject.sizes(codes_T), seconds, **how)
    return median(seconds)


def sentences(codes_T: np.ndarray, words: list[str]) -> list[str]:
    ends = np.flatnonzero(codes_T == 0)[:-1] + 1
    return [" ".join(words[code - 1] for code in part[:-1].tolist()) for part in np.split(codes_T, ends)]


def kenlm_on_ids(suite: Suite, subject: Subject, codes_T: Any, folder: Path) -> None:
    """A row: kenlm_benchmark on the same text as word ids, on all cores; a note without the programs.

    Its seconds are those of a run with the ids less those of a run without any, which loads the model only.
    """
    threads = cpu_cores()
    kernel, sizes = f"score/table3 kenlm_benchmark on word ids, {threads} threads", subject.sizes(codes_T)
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        suite.add_note(kernel, sizes, f"not measured: {' and '.join(missing)} not on the PATH")
        return
    suite.say("kenlm_benchmark reads the model")
    arpa, binary, text, ids = (folder / name for name in ("ids.arpa", "ids.binary", "ids.txt", "ids.vocab"))
    write_model(arpa, subject.training_T, subject.words, subject.trie.order)
    text.write_text("\n".join(sentences(to_host(codes_T), list(subject.words))) + "\n")
    _run(["build_binary", "probing", str(arpa), str(binary)])
    repeats = IDS_REPEATS[suite.device]
    ids.write_bytes(repeats * _run(["kenlm_benchmark", "-v", "-m", str(binary)], text)[0])
    query = ["kenlm_benchmark", "-q", "-m", str(binary), "-t", str(threads)]
    seconds = []
    for _ in range(ROUNDS):
        _, _, loading = _run(query)
        _, said, whole = _run(query, ids)
        seconds.append(max(whole - loading, 1e-9))
    expected = repeats * float(edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    sums = re.findall(r"sum(?: is|:) (\S+)", said)  # a colon since May 2016
    if not sums or abs(float(sums[-1]) - expected) > IDS_TOLERANCE * abs(expected):
        raise WrongResult(f"kenlm_benchmark gives log10 {sums} but this engine {expected} for the same ids; not timed")
    notes = f"probing; {repeats} times the text, without {loading:.3g} s of loading"
    suite.add(kernel, sizes, seconds, items=repeats * len(codes_T), unit=QUERIES_PER_SECOND, notes=notes)


def glm_on_text(suite: Suite, subject: Subject, codes_T: Any, repeated: int, folder: Path) -> None:
    """A row on a GPU: gLM's program on the same text, repeated as ours is; a note without the programs.

    Its seconds are those that it prints, of the search alone.
    """
    sizes = subject.sizes(codes_T, repeated)
    missing = [name for name in GLM_PROGRAMS if shutil.which(name) is None]
    if missing:
        suite.add_note(GLM_KERNEL, sizes, f"not measured: {' and '.join(missing)} not on the PATH")
        return
    suite.say("gLM reads the model")
    arpa, binary, text = (folder / name for name in ("glm.arpa", "glm.binary", "glm.txt"))
    write_model(arpa, subject.training_T, subject.words, subject.trie.order)
    once = to_host(codes_T[: len(codes_T) // repeated])
    text.write_text(("\n".join(sentences(once, list(subject.words))) + "\n") * repeated)
    _run(["binarize_v2", str(arpa), str(binary)])
    expected = float(edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    seconds = []
    for _ in range(ROUNDS):
        _, said, _ = _run(["batch_query_v2", str(binary), str(text)])
        rates, sums = re.findall(r"Throughput: (\d+) queries", said), re.findall(r"file sum is: (\S+)", said)
        if not rates or not sums or abs(float(sums[0]) - expected) > GLM_TOLERANCE * abs(expected):
            suite.add_note(GLM_KERNEL, sizes, f"not timed: gLM gives log10 {sums} but this engine {expected}")
            return
        seconds.append(len(codes_T) / int(rates[0]))
    suite.add(
        GLM_KERNEL, sizes, seconds, items=len(codes_T), unit=QUERIES_PER_SECOND,
        notes="B-trees of 31; text in, time of the search",
    )  # fmt: skip


def _run(command: list[str], stdin: Path | None = None) -> tuple[bytes, str, float]:
    """Return stdout, the last of all that a command says as text, and its seconds."""
    with open(stdin or "/dev/null", "rb") as file:
        start = time.perf_counter()
        ended = subprocess.run(command, stdin=file, capture_output=True)
    seconds = time.perf_counter() - start
    said = ended.stderr.decode(errors="replace")
    if ended.returncode:
        last = (said.strip() or "it says nothing").splitlines()[-1]
        raise RunError(f"{command[0]} ended with status {ended.returncode}: {last}; take it off the PATH to go without")
    return ended.stdout, f"{ended.stdout[-4096:].decode(errors='replace')}\n{said}", seconds
