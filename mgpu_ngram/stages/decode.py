"""The decode stage: its command, Amun's options among its flags, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.report import many, show_options, show_seconds, show_transport, shown_path, where
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import DECODE_PRODUCTS, opening_seconds
from mgpu_ngram.stages.flags import add_overwrite

if TYPE_CHECKING:
    from mgpu_ngram.core.corpus import Corpus
    from mgpu_ngram.jobs.context import PlanContext, RunContext
    from mgpu_ngram.jobs.decode.run import DecodeResult

EXAMPLES = """examples:
  mgpu-ngram decode model.npz --source-vocab src.json --target-vocab trg.json < test.src > test.out
  mgpu-ngram decode -c amun.yml -i test.src --n-best --beam-size 12 --return-alignment
  mgpu-ngram decode -c amun.yml --dump-config
  mgpu-ngram decode a.npz b.npz -s src.json -t trg.json --weights 0.7 0.3 --lm lm.safetensors test.src -o out.txt
  mgpu-ngram decode model.npz -s src.json -t trg.json test.src --targets test.trg -o scores.txt
  mgpu-ngram decode model.npz -s src.json -t trg.json test.src --sample --beam-size 5 --n-best --top-p 0.9 --seed 7"""
AMUN: dict[str, dict[str, Any]] = {  # options that Amun's config files have too
    "input-file": {"short": "-i", "metavar": "FILE", "help": "text to decode (default: standard input)"},
    "model": {"short": "-m", "nargs": "+", "metavar": "FILE", "help": "models, as MODEL"},
    "source-vocab": {"short": "-s", "nargs": "+", "metavar": "FILE", "help": "of each column, or factor of a word"},
    "target-vocab": {"short": "-t", "metavar": "FILE", "help": "JSON, YAML or a word a line, plain or gzipped"},
    "bpe": {"nargs": "+", "metavar": "FILE", "help": "byte pair codes of each column; also joins split words"},
    "no-debpe": {"action": "store_true", "help": "leave split words of the output split"},
    "load-weights": {"metavar": "FILE", "help": "weights of a config file's scorers, lines 'NAME= weight'"},
    "show-weights": {"action": "store_true", "help": "print these lines and end"},
    "dump-config": {"action": "store_true", "help": "print all settings as the job of a YAML file and end"},
    "relative-paths": {"action": "store_true", "help": "paths of -c start at its folder"},
    "beam-size": {"short": "-b", "type": int, "metavar": "K", "help": "hypotheses of a sentence (default 1)"},
    "normalize": {"short": "-n", "action": "store_true", "help": "--length-penalty 1"},
    "allow-unk": {"short": "-u", "action": "store_true", "help": "let results have <unk>"},
    "max-length": {"type": int, "metavar": "N", "help": "words of a sentence to read; 0: all (default 200)"},
    "max-length-multiple": {
        "type": float, "metavar": "X", "help": "most words of a result for each source word (default 2)"
    },
    "n-best": {"action": "store_true", "help": "write lists of beam-size results"},
    "wipo": {"action": "store_true", "help": "lists with their sizes, each line after 'OUT: '"},
    "return-alignment": {"action": "store_true", "help": "write the source word of each word, target-source"},
    "return-soft-alignment": {"action": "store_true", "help": "write the attention weights of each word"},
    "return-nematus-alignment": {"action": "store_true", "help": "write them as a matrix for each sentence"},
    "softmax-filter": {
        "short": "-f", "nargs": "+", "metavar": "FILE [N [M]]",
        "help": "search the N most frequent words (10000) and M translations of each source word (1000)",
    },
    "mini-batch": {"type": int, "metavar": "N", "help": "sentences searched at once (default 256)"},
    "mini-batch-words": {"type": int, "metavar": "N", "help": "most source words searched at once; 0: no limit"},
    "maxi-batch": {"type": int, "metavar": "N", "help": "sentences sorted by length together; 0: all of a task"},
    "devices": {"short": "-d", "nargs": "+", "metavar": "N", "help": "GPUs, as 0 1, or all; a worker each"},
    "cpu-threads": {"type": int, "metavar": "N", "help": "work on the CPU, with N workers"},
    "gpu-threads": {"type": int, "metavar": "N", "help": argparse.SUPPRESS},
    "tensor-cores": {"action": "store_true", "help": "--dtype float16"},
    "use-fused-softmax": {"type": "bool", "metavar": "BOOL", "help": argparse.SUPPRESS},
}  # fmt: skip
OURS: dict[str, dict[str, Any]] = {  # settings under their own names
    "lm": {"metavar": "FILE", "help": "n-gram model that takes part: a model file or an ARPA file"},
    "lm_weight": {"type": float, "metavar": "W", "help": "of its log-probabilities (default 0.2)"},
    "length_penalty": {
        "type": float, "metavar": "A", "help": "rank results by sum / length^A (default 0; 1: by the mean)"
    },
    "word_penalty": {"type": float, "metavar": "P", "help": "taken from the sum for each word (default 0)"},
    "max_steps": {"type": int, "metavar": "N", "help": "most words of any result; 0: no other limit"},
    "early_stopping": {"choices": ["amun", "first", "bound"], "help": "when a sentence is done (default amun)"},
    "prefixes": {"metavar": "FILE", "help": "first words of the results, a line for each sentence"},
    "targets": {"metavar": "FILE", "help": "results to score, a line for each sentence"},
    "sample": {"action": "store_true", "help": "draw beam-size results at random"},
    "top_k": {"type": int, "metavar": "K", "help": "draw from the K most probable words"},
    "top_p": {"type": float, "metavar": "P", "help": "draw from the words that hold the probability P"},
    "temperature": {"type": float, "metavar": "T", "help": "divides log-probabilities (default 1)"},
    "seed": {"type": int, "help": "of the random numbers (default 0)"},
    "batching": {"choices": ["refill", "drain", "naive"], "help": "how a batch goes on (default refill)"},
    "dtype": {"choices": ["float32", "float16", "bfloat16"], "help": "of weights (default float32)"},
    "chunk_sentences": {"type": int, "metavar": "N", "help": "sentences of one task"},
    "text_column": {"metavar": "NAME", "help": "text column of Parquet inputs (default text)"},
}  # fmt: skip
NOT_USED = {
    "--log-progress": "a bar shows the progress on a terminal",
    "--log-info": "the summary of -o FILE, and --json, show the same",
    "-v": "the version is that of mgpu-ngram --version",
}


@dataclass(frozen=True)
class DecodeCommand(DecodeConfig):
    """Settings of the command, which prints results unless it writes a file."""

    printed: bool = False


class DecodeStage(Stage[DecodeConfig, "DecodeResult"]):
    """Sentences in, translations out, as Amun finds them."""

    name = "decode"
    config = DecodeConfig
    format = "mgpu_ngram translations"
    resumes = True
    memory_keys = frozenset({"device_bytes"})
    needs: ClassVar[Mapping[str, Product]] = {"lm": "model"}
    examples = EXAMPLES
    stdin_setting = "text"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "inputs", nargs="*", metavar="MODEL|TEXT", help="models, which end with .npz; texts: files, globs, URLs, -"
        )
        parser.set_defaults(many="inputs")
        parser.add_argument("-o", "--output", metavar="FILE", help="text file to write instead of standard output")
        add_overwrite(parser)
        parser.add_argument("-c", "--config", metavar="FILE", help="config file of Amun; flags replace its options")
        parser.add_argument(
            "--weights", nargs="+", type=float, metavar="W", help="of the models' log-probabilities (default 1 each)"
        )
        for option, spec in AMUN.items():
            how = dict(spec)
            names = [how.pop("short"), f"--{option}"] if "short" in how else [f"--{option}"]
            if how.get("type") == "bool":
                how["type"] = _truth
            parser.add_argument(*names, dest=option.replace("-", "_"), **how)
        for setting, how in OURS.items():
            parser.add_argument("--" + setting.replace("_", "-"), dest=setting, **how)
        for flag in NOT_USED:
            parser.add_argument(flag, nargs="?", action=_Refused, help=argparse.SUPPRESS)

    def settings(self, arguments: argparse.Namespace) -> DecodeConfig:
        from mgpu_ngram.core.amun_config import checked, place_of, read_amun, settings_of, weight_lines
        from mgpu_ngram.core.typed_config import fill

        options = read_amun(arguments.config, arguments.relative_paths) if arguments.config else {}
        flags = {option: getattr(arguments, option.replace("-", "_")) for option in AMUN}
        set_flags = {option: value for option, value in flags.items() if value is not None and value is not False}
        options |= {option: checked(option, value, "the command") for option, value in set_flags.items()}
        models = [path for path in arguments.inputs if path.endswith(".npz")]
        text = [path for path in arguments.inputs if not path.endswith(".npz")]
        if models:
            options["model"] = [*(flags["model"] or []), *models]
        if options.get("show-weights"):
            print("\n".join(weight_lines(options)))
            raise SystemExit(0)
        if arguments.normalize and arguments.length_penalty is not None:
            raise InputError("--normalize is --length-penalty 1, but another --length-penalty is given; leave one out")
        found = settings_of(options) | given(arguments, ["weights", *OURS])
        if text:
            found["text"] = text
        found.setdefault("text", ["-"])
        for setting, way in (("models", "MODEL.npz or -c"), ("source_vocab", "-s FILE"), ("target_vocab", "-t FILE")):
            if not found.get(setting):
                raise InputError(f"there is no {setting.replace('_', ' ').rstrip('s')}; give {way}")
        _place(arguments, flags, place_of(options))
        found["printed"] = arguments.output is None
        if found["printed"] and arguments.json:
            raise InputError("--json prints a summary in place of the results; give -o FILE for them")
        config = fill(DecodeCommand, found, "decode")
        if options.get("dump-config"):
            _dump(config)
            raise SystemExit(0)
        return config

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def check_target(self, config: DecodeConfig, target: Target, overwrite: bool) -> None:
        if not target.single_file or target.path is None:
            return super().check_target(config, target, overwrite)
        from mgpu_ngram.jobs.decode.options import check_file

        check_file(config, target.path, overwrite)

    def check(self, config: DecodeConfig) -> None:
        from mgpu_ngram.jobs.decode.options import check

        check(config)

    def open_inputs(self, config: DecodeConfig) -> Corpus:
        from mgpu_ngram.jobs.decode.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: DecodeConfig, inputs: Corpus | None) -> float:
        if not all(map(os.path.isfile, config.models)):
            return math.inf
        from mgpu_ngram.jobs.decode.run import BYTES_PER_WORD

        parameters = sum(map(os.path.getsize, config.models)) / 4
        products = self.work_bytes(config, inputs) / BYTES_PER_WORD * config.beam_size * parameters
        return products / DECODE_PRODUCTS + (opening_seconds(config.lm) if config.lm else 0)

    def plan(self, config: DecodeConfig, context: PlanContext) -> dict[str, Any]:
        from mgpu_ngram.jobs.decode.run import plan

        return plan(config, context)

    def run(self, config: DecodeConfig, context: RunContext, inputs: Corpus | None) -> DecodeResult:
        from mgpu_ngram.jobs.decode.run import run

        return run(config, context, inputs, _print)

    def changed_since(self, config: DecodeConfig, manifest: dict[str, Any]) -> str:
        from mgpu_ngram.jobs.decode.run import changed_since

        return changed_since(config, manifest)

    def product(self, config: DecodeConfig) -> str:
        from mgpu_ngram.jobs.decode.run import TRANSLATIONS

        return TRANSLATIONS

    def shows_progress(self, config: DecodeConfig) -> bool:
        return not (getattr(config, "printed", False) and sys.stdout.isatty())  # a bar would be drawn between lines

    def show_result(self, config: DecodeConfig, result: DecodeResult) -> None:
        if result.path is None:
            return
        words = f"{result.source_words:,} words to {result.words:,}"
        print(f"{shown_path(result.path)}: {many(result.sentences, 'sentence')}, {words}")
        rates = f"{result.sentences_per_second:,.0f} sentences/s, {result.words_per_second:,.0f} words/s"
        print(f"{result.wall_seconds:.2f} s on {where(result)}: {rates}")
        show_seconds(result.seconds)
        show_transport(result)

    def show_plan(self, plan: dict[str, Any]) -> None:
        lm = f" and {plan['lm']}" if plan["lm"] else ""
        print(
            f"{plan['job']}: {many(plan['inputs'], 'input')} of {plan['input_bytes']:,} bytes, about "
            f"{plan['words_about']:,} words; {many(plan['workers'], plan['device'] + ' worker')}; beam of "
            f"{plan['beam_size']} by {', '.join(plan['models'])}{lm}; {plan['mini_batch']:,} sentences at once, "
            f"{plan['batching']}"
        )

    def show_info(self, path: str, described: dict[str, Any]) -> None:
        totals, models = described["totals"], [file for file in described["files"] if file.endswith(".npz")]
        print(
            f"{path}: {many(totals['sentences'], 'sentence')}, {totals['source_words']:,} words to "
            f"{totals['words']:,}, by {', '.join(models)}"
        )
        show_options(described)


STAGE = DecodeStage()


class _Refused(argparse.Action):
    """A flag of Amun that has no use here: the error says why."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> NoReturn:
        parser.error(f"{option} is not used: {NOT_USED[str(option)]}; leave it out")


def _truth(text: str) -> bool:
    """Return the value of a flag that Amun reads as a boolean."""
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text.lower() in ("true", "1", "yes", "on")


def _place(arguments: argparse.Namespace, flags: dict[str, Any], place: dict[str, Any]) -> None:
    """Set where the command works, unless its own flags say it."""
    if flags["devices"] and (arguments.device == "cpu" or arguments.workers is not None):
        own = f"--device {arguments.device}" if arguments.device == "cpu" else f"--workers {arguments.workers}"
        raise InputError(f"--devices {' '.join(flags['devices'])} names GPUs, a worker each, but {own} is given")
    arguments.devices = None
    if arguments.device == "auto" and arguments.workers is None:
        for name, value in place.items():
            setattr(arguments, name, value)


def _dump(config: DecodeConfig) -> None:
    """Print a YAML file whose job has these settings, those that differ from the defaults."""
    import yaml

    values = asdict(config)
    blank = asdict(DecodeConfig([""], [""], [""], ""))
    job = {f.name: values[f.name] for f in fields(DecodeConfig) if values[f.name] != blank[f.name]}
    job["text"] = [path for path in config.text if path != "-"]
    print(yaml.safe_dump({"output": "runs", "jobs": [{"decode": job}]}, sort_keys=False), end="")


def _print(text: bytes) -> None:
    sys.stdout.buffer.write(text)
