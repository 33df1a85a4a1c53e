"""Whole decodes of the original Amun's GPU program, on the model and the sentences of this engine's rows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import numpy as np

from mgpu_ngram.benchmarks.decode import cpu as decode_cpu
from mgpu_ngram.benchmarks.decode.generated_model import SOURCE_WORDS_PER_SECOND, DecodeBench, sizes_of, words_in
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode.batch import Batching

WHOLE = "decode/whole Amun"
UNFUSED, FUSED = "decode/fusion Amun unfused", "decode/fusion Amun fused"
BATCH = "decode/batch Amun"
BATCH_SENTENCES = 1024  # at once with beam 1, fewer with larger beams
ROUNDS = 2
TENSOR_CORES, NO_FUSION = "tensor-cores: true\n", "use-fused-softmax: false\n"  # settings of its file


def is_there(bench: DecodeBench, kernel: str) -> bool:
    """Return whether rows of Amun's GPU program can be made; on a GPU without the program, add a note."""
    if bench.suite.device != "gpu":
        return False
    if shutil.which(decode_cpu.PROGRAM) is None:
        bench.suite.add_note(kernel, str(bench.system.shape), f"not measured: {decode_cpu.PROGRAM} is not on the PATH")
        return False
    return True


def add_row(
    bench: DecodeBench,
    kernel: str,
    sources: Sequence[np.ndarray],
    beam_size: int,
    batch: int | None = None,
    settings: str = "",
) -> None:
    """Add a row of Amun's program, by the time that it prints.

    batch     sentences at once; None: BATCH_SENTENCES over the beam size
    settings  further lines of its file
    """
    suite, batch = bench.suite, batch or max(1, BATCH_SENTENCES // beam_size)
    suite.say(f"{kernel.removeprefix('decode/')}, beam {beam_size}, batches of {batch}")
    files, text, config = bench.system.files, bench.folder / "amun.txt", bench.folder / "amun.yml"
    words = load_nmt_vocabulary(files.target_vocab)
    text.write_text("".join(f"{' '.join(words.decode(ids))}\n" for ids in sources))
    model, vocabulary = files.models[0], files.target_vocab
    config.write_text(decode_cpu.CONFIG.format(model=model, source=vocabulary, target=vocabulary) + settings)
    command = [
        decode_cpu.PROGRAM, "-c", str(config), "-i", str(text), "--beam-size", str(beam_size),
        "--max-length-multiple", "1.0", "--mini-batch", str(batch), "--maxi-batch", str(max(batch, len(sources))),
        "--log-progress", "off",
    ]  # fmt: skip
    seconds = []
    for _ in range(ROUNDS):
        lines, taken = decode_cpu.run_amun(command)
        if lines.count("\n") != len(sources):
            raise WrongResult(f"Amun gives {lines.count(chr(10)):,} lines for {len(sources):,}; not timed")
        seconds.append(taken)
    suite.add(
        kernel, sizes_of(bench.system.shape, sources, beam_size, Batching(batch, kind="drain")), seconds,
        items=words_in(sources), unit=SOURCE_WORDS_PER_SECOND, notes="its own time, without the loading of the model",
    )  # fmt: skip
