"""KenLM's programs lmplz, query and build_binary: their options, which our stages carry out."""

from __future__ import annotations

import argparse
import getopt
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from mgpu_ngram.commands.kenlm_stages import can_be_reread, folder_of, regular_file, run_stage, stage_config
from mgpu_ngram.commands.run import Job, RunOptions
from mgpu_ngram.commands.stage import file_for, run_one
from mgpu_ngram.commands.standard_streams import stdout
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.memory_config import MIN_BYTES, MemoryConfig
from mgpu_ngram.core.storage.output import check_not_input
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.stages.contract import Target
from mgpu_ngram.stages.registry import STAGES

SIZE_UNITS = "bKMGTPEZY"  # units of sizes, powers of 1024; without a unit: K
QUERY = "usage: kenlm-query [-b] [-n] [-v word|sentence|summary] [-l lazy|populate|read|parallel] MODEL < TEXT"
BUILD_BINARY = (
    "usage: kenlm-build_binary [-u LOG10] [-s] [-i] [-v] [-w mmap|after] [-p MULTIPLIER] [-r MODELS] [-T PREFIX] "
    "[-S SIZE] [-q BITS] [-b BITS] [-a BITS] [probing|trie] MODEL.arpa [OUT]"
)
VERBOSITIES = {
    "0": ["summary"], "1": ["sentence", "summary"], "2": ["word", "sentence", "summary"],
    "word": ["word"], "sentence": ["sentence"], "summary": ["summary"],
}  # fmt: skip
BUILD_FLAGS = {  # options of build_binary that take a value -> settings of a convert job
    "-q": "quantize", "-b": "quantize_backoff", "-a": "pointer_bits", "-u": "unk_log10", "-p": "multiplier",
}  # fmt: skip
BUILD_SWITCHES = {"-v": ("words", False), "-s": ("need_markers", False), "-i": ("positive_to_zero", True)}


class _Usage(argparse.ArgumentParser):
    """Reports an error in one line, with KenLM's exit status."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}; see {self.prog} --help\n")


def lmplz(argv: list[str]) -> None:
    """Text in, ARPA file out."""
    parser = _lmplz_parser()
    if not argv:
        parser.print_help(sys.stderr)
        raise SystemExit(1)
    arguments, rest = parser.parse_known_args([_with_underscores(word) for word in argv])
    if unknown := next((word for word in rest if word.startswith("-")), None):  # other words are ignored, as by KenLM
        parser.error(f"unrecognized option {unknown}")
    if arguments.intermediate:
        raise InputError(
            "--intermediate writes files for KenLM's interpolate and is not supported; leave it out and mix ARPA files "
            "with mgpu-ngram mix"
        )
    if arguments.renumber:
        raise InputError("--renumber is not supported: it only changes the order of lines in ARPA files; leave it out")
    for size in (arguments.minimum_block, arguments.sort_block):
        parse_size(size)
    if arguments.text and os.path.exists(arguments.text) and not can_be_reread(arguments.text):
        sys.stdin, arguments.text = open(arguments.text), None  # noqa: SIM115  # a pipe
    settings = {
        "corpus": [arguments.text or "-"], "format": "arpa", "order": arguments.order, "prune": arguments.prune,
        "limit_vocab_file": arguments.limit_vocab_file, "vocab_pad": arguments.vocab_pad,
        "discount_fallback": arguments.discount_fallback, "interpolate_unigrams": arguments.interpolate_unigrams,
        "skip_symbols": arguments.skip_symbols, "collapse_values": arguments.collapse_values,
        "verbose_header": arguments.verbose_header,
    }  # fmt: skip
    host_bytes = None if arguments.memory is None else max(parse_size(arguments.memory), MIN_BYTES["host_bytes"])
    folder = folder_of(arguments.temp_prefix, "-T")
    if arguments.arpa:
        folder_of(arguments.arpa, "--arpa")
        check_not_input(arguments.arpa, [path for path in (arguments.text, arguments.limit_vocab_file) if path])
    with file_for(arguments.arpa, "model.arpa", folder) as path:
        [result] = run_stage("estimate", settings, path, MemoryConfig(host_bytes=host_bytes, spill_dir=folder))
    _show_statistics(result)


def _with_underscores(word: str) -> str:
    """Return an option as KenLM spells it: we also take --skip-symbols for --skip_symbols."""
    name, equals, value = word.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if word.startswith("--") else word


def _lmplz_parser() -> argparse.ArgumentParser:
    parser = _Usage(
        prog="kenlm-lmplz",
        description="Estimate a model from text on stdin and write an ARPA file to stdout, as KenLM's lmplz.",
    )
    add = parser.add_argument
    # fmt: off
    add("-o", "--order", type=int, required=True, metavar="N", help="order of the model")
    add("--interpolate_unigrams", type=_bool, nargs="?", const=True, default=True, metavar="BOOL",
        help="0: <unk> gets all mass that order 1 leaves, as in SRILM (default 1)")
    add("--skip_symbols", action="store_true",
        help="drop <s>, </s> and <unk> from the text (default: they are errors)")
    add("-T", "--temp_prefix", metavar="PREFIX", help="folder of temporary files (default: the system's)")
    add("-S", "--memory", metavar="SIZE",
        help="host memory, as 80%% or 10G, at least 64M (default: half of the free memory)")
    add("--minimum_block", default="8K", metavar="SIZE", help="accepted without effect")
    add("--sort_block", default="64M", metavar="SIZE", help="accepted without effect")
    add("--block_count", type=int, metavar="N", help="accepted without effect")
    add("--vocab_estimate", type=int, metavar="N", help="accepted without effect")
    add("--vocab_pad", type=int, default=0, metavar="V", help="least vocabulary size for the uniform distribution")
    add("--verbose_header", action="store_true", help="write comments at the head of the ARPA file")
    add("--text", metavar="FILE", help="text (default: stdin)")
    add("--arpa", metavar="FILE", help="file to write (default: stdout)")
    add("--intermediate", metavar="PREFIX", help="not supported")
    add("--renumber", action="store_true", help="not supported")
    add("--collapse_values", action="store_true", help="write one value for probability and backoff")
    add("--prune", type=int, nargs="+", default=[], metavar="K",
        help="drop n-grams that occur at most K times: one K for each order, the last also for all higher orders")
    add("--limit_vocab_file", metavar="FILE", help="drop n-grams with words that are not in this file")
    add("--discount_fallback", type=float, nargs="*", metavar="D",
        help="discounts of counts 1, 2, 3 and more for orders without computable discounts (default 0.5 1 1.5)")
    # fmt: on
    return parser


def _bool(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return values[text.lower()]


def _show_statistics(result: Any) -> None:
    """Print the lines of lmplz that tell tokens, n-grams and discounts."""
    found = result.statistics
    print(f"Unigram tokens {result.tokens} types {result.types}\nStatistics:", file=sys.stderr)
    for n, kept in found.kept.items():
        of = f"/{found.total[n]}" if kept != found.total[n] else ""
        d1, d2, d3 = found.discounts[n]
        print(f"{n} {kept}{of} D1={d1:.6g} D2={d2:.6g} D3+={d3:.6g}", file=sys.stderr)


def query(argv: list[str]) -> None:
    """Text on standard input, scores on standard output."""
    flags, words = _parse(argv, "bnv:l:", QUERY)
    printed: list[str] = []
    markers = True
    for flag, value in flags:
        if flag == "-n":
            markers = False
        elif (flag == "-v" and value not in VERBOSITIES) or (
            flag == "-l" and value not in ("lazy", "populate", "read", "parallel")
        ):
            raise InputError(f"{flag} is {value!r}; {QUERY}")
        elif flag == "-v":
            printed = VERBOSITIES[value] if value.isdigit() else [*printed, value]
    if len(words) != 1:
        raise InputError(QUERY)
    stage: Any = STAGES["score"]
    one_line = "word" in printed and "sentence" not in printed
    with regular_file(words[0], None) as model:
        config = fill(stage.config, {"model": model, "text": ["-"], "sentence_markers": markers}, "score")
        made = stage.printing(config, tuple(printed or VERBOSITIES["2"]), one_line)
        if ("-b", "") not in flags:
            run_one(Job(stage, made, Target(None, single_file=True)), stage_config(None, MemoryConfig()), RunOptions())
            return
        stage.check(made)
        with stdout():
            stage.print_at_once(made, iter(sys.stdin.buffer.readline, b""))


def build_binary(argv: list[str]) -> None:
    """ARPA file in, KenLM binary model out."""
    flags, words = _parse(argv, "q:b:a:u:p:t:T:m:S:w:sir:vh", BUILD_BINARY)
    kind = words.pop(0) if len(words) == 3 else "probing"
    if kind not in ("probing", "trie"):
        raise InputError(f"{kind!r} is neither probing nor trie; {BUILD_BINARY}")
    settings: dict[str, Any] = {}
    for flag, value in flags:
        if flag == "-h":
            raise InputError(BUILD_BINARY)
        if flag in BUILD_SWITCHES:
            name, state = BUILD_SWITCHES[flag]
            settings[name] = state
        elif flag in BUILD_FLAGS:
            settings[BUILD_FLAGS[flag]] = _number(flag, value, float if flag in ("-u", "-p") else int)
        elif flag == "-r":
            settings["rest"] = value.split(" ")
        elif flag == "-w" and value not in ("mmap", "after"):
            raise InputError(f"-w is {value!r} but must be mmap or after")
        elif flag == "-S":
            parse_size(value)
        elif flag == "-m":
            _number(flag, value, int)
    if "quantize_backoff" in settings and "quantize" not in settings:
        raise InputError("-b is given without -q; give the bits of probabilities, too")
    if len(words) == 1:
        with regular_file(words[0], None) as path:
            _show_sizes(path, settings)
        return
    if len(words) != 2:
        raise InputError(BUILD_BINARY)
    source, output = words
    if kind == "probing" and "quantize" in settings:
        raise InputError("-q is given, but KenLM quantises only tries; put the word trie before the ARPA file")
    if kind == "trie" and "rest" in settings:
        raise InputError("-r is given, but KenLM's tries have no rest costs; leave out -r or the word trie")
    if kind == "probing":
        settings.pop("pointer_bits", None)  # as in KenLM
    folder = folder_of(output, "output")
    check_not_input(output, [source, *settings.get("rest", [])])
    with regular_file(source, folder) as model, file_for(output, "model.binary", None) as path:
        run_stage("convert", settings | {"model": model, "format": f"kenlm-{kind}"}, path, MemoryConfig())
    print("SUCCESS", file=sys.stderr)


def _show_sizes(path: str, settings: dict[str, Any]) -> None:
    """Print KenLM's estimate of the memory of each kind of model, from the counts in the head of an ARPA file."""
    from mgpu_ngram.core.kenlm.sizes import probing_bytes, trie_bytes
    from mgpu_ngram.core.kenlm.trie import Packing
    from mgpu_ngram.core.models.arpa_text import open_text

    counts, multiplier = open_text(path).read_counts()[0], settings.get("multiplier", 1.5)
    q, a = settings.get("quantize", 8), settings.get("pointer_bits", 22)
    b = settings.get("quantize_backoff", q)
    sizes = [
        (f"probing {{}} assuming -p {multiplier:g}", probing_bytes(counts, multiplier)),
        (f"probing {{}} assuming -r models -p {multiplier:g}", probing_bytes(counts, multiplier, rest=True)),
        ("trie    {} without quantization", trie_bytes(counts, Packing())),
        (f"trie    {{}} assuming -q {q} -b {b} quantization ", trie_bytes(counts, Packing(q, b))),
        (f"trie    {{}} assuming -a {a} array pointer compression", trie_bytes(counts, Packing(0, 0, a))),
        (
            f"trie    {{}} assuming -a {a} -q {q} -b {b} array pointer compression and quantization",
            trie_bytes(counts, Packing(q, b, a)),
        ),
    ]
    least, most = min(size for _, size in sizes), max(size for _, size in sizes)
    power = sum(least >= 10 << 10 * p for p in (1, 2, 3))
    width = max(2, math.ceil(math.log10(most / (1 << 10 * power))))
    print(f"Memory estimate for binary LM:\ntype    {' kMG'[power]:>{width - 1}}B", file=sys.stderr)
    for line, size in sizes:
        print(line.format(f"{size >> 10 * power:>{width}}"), file=sys.stderr)


def filter(argv: list[str]) -> None:
    """Model or n-grams in, those of given words out."""
    from mgpu_ngram.commands.kenlm_filter import run_filter

    run_filter(argv)


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "lmplz": lmplz,
    "query": query,
    "build_binary": build_binary,
    "filter": filter,
}


def _parse(argv: list[str], short: str, usage: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return (flags with their values, other words). Raises InputError with the usage."""
    if not argv or argv == ["--help"]:
        raise InputError(usage)
    try:
        return getopt.gnu_getopt(argv, short)
    except getopt.GetoptError as error:
        raise InputError(f"{error}; {usage}") from None


def parse_size(text: str) -> int:
    """Return the bytes of a size as KenLM and GNU sort write it: 80% of the memory, 10G, or kibibytes."""
    digits = text.rstrip("%" + SIZE_UNITS + SIZE_UNITS.lower())
    unit = text[len(digits) :] or "K"
    with suppress(ValueError, OverflowError):  # nan and inf
        number = float(digits)
        if unit == "%":
            import psutil

            return int(number / 100 * psutil.virtual_memory().total)
        if len(unit) == 1:
            return int(number * 1024 ** SIZE_UNITS.lower().index(unit.lower()))
    raise InputError(f"the size {text!r} is not a number with one of the units % {' '.join(SIZE_UNITS)}")


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{flag} is {text!r} but must be {what}") from None
