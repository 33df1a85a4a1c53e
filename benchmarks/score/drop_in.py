"""The drop-in beside KenLM's Python module, where that is installed: each call, loading, memory, threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from mgpu_ngram.benchmarks.harness.origin import PACKAGE_PARENT
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs.frequency_models import write_model
from mgpu_ngram.benchmarks.inputs.scoring_subjects import Subject, head
from mgpu_ngram.benchmarks.score import drop_in_process
from mgpu_ngram.benchmarks.score.peers import sentences
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.models.model_file import BackoffModel, save_model
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.trie.build import edges_of
from mgpu_ngram.engine.trie.open_model import open_model
from mgpu_ngram.kernels.dispatch import to_host

OURS, PEER = "mgpu_ngram.kenlm", "kenlm"
TOKENS = 400_000  # tokens of the text
ROUNDS = 3  # rounds of both modules in turn
CALLS = {
    "score": "sentences",
    "full_scores": "sentences",
    "BaseScore": "words",
    "BaseFullScore": "words",
    "in": "words",
}
IMPORT_SECONDS, MAPPED_SECONDS, MEMORY, THREADS = 0.15, 0.1, 1.5, 1.8  # targets; the last two are ratios

Runs = list[dict[str, Any]]


def drop_in(suite: Suite, subject: Subject, folder: Path) -> None:
    """Rows for an ARPA file, KenLM's binaries and model files. The sums of scores of both modules must be equal."""
    arpa, text = folder / "drop_in.arpa", folder / "drop_in.txt"
    write_model(arpa, to_host(subject.training_T), subject.words, subject.trie.order)
    lines = sentences(to_host(head(subject.text_T, TOKENS)), list(subject.words))
    text.write_text("\n".join(lines) + "\n")
    model = open_model(arpa)
    paths = {"ARPA": arpa, **{name: folder / f"{name}.binary" for name in ("probing", "trie")}}
    write_kenlm(paths["probing"], model, "kenlm-probing")
    write_kenlm(paths["trie"], model, "kenlm-trie")
    paths |= {"model-file": folder / "drop_in.safetensors", "model-file-edges": folder / "edges.safetensors"}
    save_model(paths["model-file"], model)
    save_model(paths["model-file-edges"], BackoffModel.of(model.trie, model.words, edges_of(model.trie)))
    del model
    has_peer = find_spec(PEER) is not None
    if not has_peer:
        suite.say("kenlm is not installed, so its rows are left out; pip install kenlm")
    peers: dict[str, Runs] = {}
    for name, path in paths.items():
        suite.say(f"the drop-in on {name}")
        ours: Runs = []
        theirs: Runs = []
        for _ in range(ROUNDS):
            ours.append(_run(OURS, path, text))
            if has_peer and not name.startswith("model-file"):
                theirs.append(_run(PEER, path, text))
        peers[name] = theirs or peers.get("probing", [])  # a model file stands beside KenLM's fastest one
        if peers[name] and (a := ours[0]["sum"]) != (b := peers[name][0]["sum"]):
            raise WrongResult(f"kenlm gives log10 {b} but the drop-in {a} for the same text; not timed")
        sizes = f"{subject.model_sizes} T={ours[0]['words']} file={name}"
        _add_rows(suite, sizes, "kenlm module", theirs, [], name)
        _add_rows(suite, sizes, "drop-in", ours, peers[name], name)


def _run(module: str, path: Path, text: Path) -> dict[str, Any]:
    """Return what a process of `module` prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGE_PARENT, os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-P", str(drop_in_process.__file__), module, str(path), str(text)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"{module} ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def _add_rows(suite: Suite, sizes: str, who: str, found: Runs, peer: Runs, file: str) -> None:
    if not found:
        return

    def seconds(name: str, runs: Runs) -> list[float]:
        return [median(run[name]) for run in runs]

    def add(name: str, items: float, unit: str, target: float | None = None, notes: str = "") -> None:
        how: dict[str, Any] = {}
        if peer:
            how = {"baseline": f"score/kenlm module {name}", "baseline_seconds": median(seconds(name, peer))}
        suite.add(
            f"score/{who} {name}",
            sizes,
            seconds(name, found),
            items=items,
            unit=unit,
            target=target,
            notes=notes,
            **how,
        )

    for name, unit in CALLS.items():
        items = found[0]["lines" if unit == "sentences" else "words"]
        add(name, items, f"{unit}/s", items / median(seconds(name, peer)) if peer else None)
    memory = median(run["resident_bytes"] for run in found) / 1e6
    notes = f"then {memory:.0f} MB are resident"
    if peer:
        notes += f", {memory / (median(run['resident_bytes'] for run in peer) / 1e6):.2f} of kenlm's; at most {MEMORY}"
    limit = median(seconds("load", peer)) if file == "ARPA" and peer else MAPPED_SECONDS
    add("load", 1, "loads/s", 1 / limit if who == "drop-in" else None, notes)
    if file == "ARPA":
        add("import", 1, "imports/s", 1 / IMPORT_SECONDS if who == "drop-in" else None)
    for lines in "sentences", "long lines":
        one, two = (seconds(f"{threads} threads, {lines}", found) for threads in (1, 2))
        rate = found[0]["lines"] / median(one)
        suite.add(
            f"score/{who} two threads, {lines}", sizes, two, items=2 * found[0]["lines"], unit="sentences/s",
            target=THREADS * rate if who == "drop-in" else None, baseline="one thread",
            baseline_seconds=2 * median(one), notes="wall time",
        )  # fmt: skip
