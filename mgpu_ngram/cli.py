"""The command line, `mgpu-ngram COMMAND`.

Results go to stdout and can be piped; progress and errors go to stderr. Exit status 0: done; 1: the run failed;
2: bad input; 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from mgpu_ngram.commands import aliases, commands
from mgpu_ngram.core.errors import INTERRUPTED, InputError, RunError, show_warnings_plainly
from mgpu_ngram.core.interrupts import interrupted
from mgpu_ngram.core.version import VERSION

INTERRUPTED_HINT = "; a job that has saved a checkpoint continues with --resume"  # of commands with this option
COMPILE_MODULE = "mgpu_ngram.kernels.compile_cpu"  # which only some commands need
MISSING = "the following arguments are required"  # how argparse begins its message
OPTION = re.compile(r"-[^\d.]")  # how options begin, and numbers do not
EXAMPLES = """examples:
  mgpu-ngram run configs/quickstart.yaml
  mgpu-ngram count books/*.txt.gz -o counts --order 5
  mgpu-ngram estimate books/*.txt.gz -o model.arpa --order 5
  mgpu-ngram export counts --order 3 --top 100
  mgpu-ngram score model.arpa heldout.txt -v summary
  mgpu-ngram distribution model.arpa heldout.txt -o next_words --top-k 100
  mgpu-ngram count --help"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit status."""
    arguments = _parse(argv)
    hint = INTERRUPTED_HINT if hasattr(arguments, "resume") else ""
    return _guarded("mgpu-ngram", lambda: arguments.verb(arguments), arguments.debug, hint)


def kenlm_program(argv: list[str] | None = None) -> int:
    """Run lmplz, query, build_binary or filter, by the name in argv[0], also after kenlm-; return its exit status."""
    from mgpu_ngram.commands.kenlm import PROGRAMS

    program, *words = sys.argv if argv is None else argv
    name = os.path.basename(program)
    return _guarded(name, lambda: PROGRAMS[name.removeprefix("kenlm-")](words), debug=False)


def _guarded(name: str, run: Callable[[], None], debug: bool, hint: str = "") -> int:
    """Call a function; print an error in one line, after the program's name, and return the exit status.

    hint  what follows the line of an interrupt
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # do not fail for an n-gram that the terminal cannot show
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed; send it to a file, or to /dev/null")
        show_warnings_plainly()
        with contextlib.suppress(ValueError):  # outside the main thread there are no signals
            signal.signal(signal.SIGTERM, _terminated)
        with _interruptible():
            run()
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        if debug:
            traceback.print_exc()
        interrupt = _interrupt_of(error)
        line = f"interrupted; unfinished outputs are removed{hint}" if interrupt else _one_line(error, name)
        print(f"{name}: {line}", file=sys.stderr)
        if interrupt:
            return INTERRUPTED
        return 2 if isinstance(error, InputError) else 1


def _interrupt_of(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that caused an error: in a compiled function, Ctrl-C becomes the cause of a SystemError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return cause
        cause = cause.__cause__
    return None


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the work and the compilations of threads, too: the command waits for its threads."""
    interrupted.clear()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or a caller's
        yield
        return
    try:
        signal.signal(signal.SIGINT, _interrupted)
    except ValueError:  # outside the main thread there are no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted.clear()
        if compile := sys.modules.get(COMPILE_MODULE):
            compile.allow_compiling()


def _interrupted(*_: object) -> NoReturn:
    interrupted.set()
    if compile := sys.modules.get(COMPILE_MODULE):
        compile.stop_compiling()
    raise KeyboardInterrupt


def _terminated(*_: object) -> None:
    """Clean up after SIGTERM, from `timeout` or a batch system, as after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, _interrupted)  # a script ignores it in background commands
    signal.raise_signal(signal.SIGINT)  # waits where interrupts are held


def _parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments of a command; texts and overrides may precede and follow flags."""
    argv = sys.argv[1:] if argv is None else argv
    parser, parsers = _parser(next((word for word in argv if not word.startswith("-")), ""))
    arguments, rest = parser.parse_known_args(argv)
    many = getattr(arguments, "many", None)
    first = next((i for i, word in enumerate(rest) if word.startswith("-") and word != "-"), len(rest))
    if many is not None:
        getattr(arguments, many).extend(rest[:first])
        rest = rest[first:]
    if rest:
        parsers[arguments.command].error(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _one_line(error: BaseException, name: str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, InputError | RunError):
        return text
    from mgpu_ngram.engine.memory.out_of_memory import out_of_memory

    if out_of_memory(error):
        return f"out of memory ({text}); lower chunk_bytes or the number of workers, or run where there is more"
    where = "; --debug shows where" if name == "mgpu-ngram" else ""  # KenLM's programs have no --debug
    return f"the run failed: {type(error).__name__}: {text}{where}"


class _ArgumentParser(argparse.ArgumentParser):
    """Reports an error in one line, unknown options before missing arguments."""

    words: Sequence[str] = ()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # as in argparse
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING) and (unknown := self._unknown_options()):
            message = f"unrecognized arguments: {' '.join(unknown)}"
        self.exit(2, f"mgpu-ngram: {message}; see {self.prog} --help\n")

    def _unknown_options(self) -> list[str]:
        """Return the words before -- that look like options and are none."""
        known = self._option_string_actions
        return [
            word
            for word in itertools.takewhile(lambda word: word != "--", self.words)
            if OPTION.match(word) and word.partition("=")[0] not in known and word[:2] not in known
        ]


def _parser(wanted: str) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, and those of the commands by name; only the `wanted` command gets its arguments."""
    parser = _ArgumentParser(
        prog="mgpu-ngram",
        description="N-gram counts, scores and next-word distributions on GPUs and CPUs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mgpu-ngram {VERSION}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, (module, help) in commands().items():
        others = [alias for alias, verb in aliases().items() if verb == name]
        command = subparsers.add_parser(
            name,
            help=help,
            aliases=others,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parsers[name] = command
        if aliases().get(wanted, wanted) == name:
            command.add_argument("--json", action="store_true", help="print JSON for machines")
            command.add_argument("--debug", action="store_true", help="show the traceback of an error")
            command.set_defaults(command=name)
            importlib.import_module(module).add(command, name)
    return parser, parsers
