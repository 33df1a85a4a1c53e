"""The decode stage: its command, Amun's options among its flags, and how its plans, results and outputs are shown."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.stages.contract import Product, Stage, Target, given
from mgpu_ngram.stages.cpu_rates import DECODE_PRODUCTS, opening_seconds
from mgpu_ngram.stages.decode_flags import AMUN_FLAGS, OUR_FLAGS, add_decode_flags
from mgpu_ngram.stages.report import many, show_options, show_seconds, show_transport, shown_path, where, where_planned

if TYPE_CHECKING:
    from mgpu_ngram.core.inputs.corpus import Corpus
    from mgpu_ngram.jobs.context import RunContext
    from mgpu_ngram.jobs.decode.run import DecodeResult

EXAMPLES = """examples:
  mgpu-ngram decode model.npz --source-vocab src.json --target-vocab trg.json < test.src > test.out
  mgpu-ngram decode -c amun.yml -i test.src --n-best --beam-size 12 --return-alignment
  mgpu-ngram decode -c amun.yml --dump-config
  mgpu-ngram decode a.npz b.npz -s src.json -t trg.json --weights 0.7 0.3 --lm lm.safetensors test.src -o out.txt
  mgpu-ngram decode model.npz -s src.json -t trg.json test.src --targets test.trg -o scores.txt
  mgpu-ngram decode model.npz -s src.json -t trg.json test.src --sample --beam-size 5 --n-best --top-p 0.9 --seed 7"""


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
    files = ("models", "source_vocab", "target_vocab", "bpe", "softmax_filter", "prefixes", "targets")
    examples = EXAMPLES
    stdin_setting = "text"
    stdout = "printed"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_decode_flags(parser)

    def settings(self, arguments: argparse.Namespace) -> DecodeConfig:
        from mgpu_ngram.core.nmt.amun_config import amun_settings, checked, placement_of, read_amun, weight_lines
        from mgpu_ngram.core.nmt.files import vocabularies_beside
        from mgpu_ngram.core.typed_config import fill

        options = read_amun(arguments.config, arguments.relative_paths) if arguments.config else {}
        flags = {option: getattr(arguments, option.replace("-", "_")) for option in AMUN_FLAGS}
        set_flags = {option: value for option, value in flags.items() if value is not None}
        options |= {option: checked(option, value, "the command") for option, value in set_flags.items()}
        models = [path for path in arguments.inputs if path.endswith(".npz")]
        text = [path for path in arguments.inputs if not path.endswith(".npz")]
        if models:
            options["model"] = [*(flags["model"] or []), *models]
        if arguments.weights and flags["load-weights"]:
            raise InputError("--weights and --load-weights are given; give one of them")
        if options.get("show-weights"):
            print("\n".join(weight_lines(options, arguments.weights)))
            raise SystemExit(0)
        if arguments.normalize and arguments.length_penalty is not None:
            raise InputError("--normalize is --length-penalty 1, but another --length-penalty is given; leave one out")
        found = amun_settings(options) | given(arguments, ["weights", *OUR_FLAGS])
        if text and flags["input-file"]:
            raise InputError(f"--input-file {flags['input-file']} and {text[0]} are given; give one of them")
        if text:
            found["text"] = text
        found.setdefault("text", ["-"])
        if found.get("models") and not (found.get("source_vocab") or found.get("target_vocab")):
            *source, target = vocabularies_beside(found["models"][0]) or [""]
            found |= {"source_vocab": source, "target_vocab": target}
        for setting, way in (("models", "MODEL.npz or -c"), ("source_vocab", "-s FILE"), ("target_vocab", "-t FILE")):
            if not found.get(setting):
                raise InputError(f"there is no {setting.replace('_', ' ').rstrip('s')}; give {way}")
        on_cpu = flags["cpu-threads"] is not None or flags["mode"] is not None
        others = ("cpu-threads", "mode") if flags["devices"] and not on_cpu else ()
        _place(arguments, flags, placement_of({name: value for name, value in options.items() if name not in others}))
        found["printed"] = arguments.output is None
        if found["printed"] and arguments.json:
            raise InputError("--json prints a summary in place of the results; give -o FILE for them")
        config = fill(DecodeCommand, found, "decode")
        if options.get("dump-config"):
            _dump(config, _cluster(arguments))
            raise SystemExit(0)
        return config

    def target(self, arguments: argparse.Namespace) -> Target:
        return Target(arguments.output or None, single_file=True)

    def check_file(self, config: DecodeConfig, path: str | Path, overwrite: bool) -> None:
        from mgpu_ngram.core.storage.output import check_text_file

        check_text_file(path, overwrite)

    def check(self, config: DecodeConfig, made: Collection[str] = ()) -> None:
        from mgpu_ngram.jobs.decode.options import check

        check(config, made)

    def open_inputs(self, config: DecodeConfig) -> Corpus:
        from mgpu_ngram.jobs.decode.run import open_inputs

        return open_inputs(config)

    def cpu_seconds(self, config: DecodeConfig, inputs: Corpus | None) -> float:
        if not all(map(os.path.isfile, config.models)):
            return math.inf
        from mgpu_ngram.jobs.budget import TEXT_WORD_BYTES

        parameters = sum(map(os.path.getsize, config.models)) / 4
        products = self.work_bytes(config, inputs) / TEXT_WORD_BYTES * config.beam_size * parameters
        return products / DECODE_PRODUCTS + (opening_seconds(config.lm) if config.lm else 0)

    def run(self, config: DecodeConfig, context: RunContext, inputs: Corpus | None) -> DecodeResult:
        from mgpu_ngram.jobs.decode.run import run

        return run(config, context, inputs, _print)

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
            f"{plan['words_about']:,} words; {where_planned(plan)}; beam of "
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


def _place(arguments: argparse.Namespace, flags: dict[str, Any], place: dict[str, Any]) -> None:
    """Set the device and the workers as Amun's options say, unless flags of mgpu-ngram set them."""
    own = {
        "--device cpu": arguments.device == "cpu",
        f"--workers {arguments.workers}": arguments.workers is not None,
        "--scheduler": arguments.scheduler or arguments.scheduler_file,
    }
    set_by_flags = [flag for flag, is_given in own.items() if is_given]
    if flags["devices"] and set_by_flags:
        devices = " ".join(flags["devices"])
        raise InputError(
            f"--devices {devices} names GPUs of this host, but {set_by_flags[0]} is given; leave one of them out"
        )
    arguments.devices = None if set_by_flags else place.get("devices")
    if arguments.device == "auto" and not set_by_flags and "device" in place:
        arguments.device, arguments.workers = place["device"], place.get("workers")


def _cluster(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where the command runs as the section `cluster` of a YAML file, which has no numbers of GPUs."""
    if arguments.devices:
        number = len(set(arguments.devices))
        workers = {} if arguments.devices == "all" else {"workers": number if number > 1 else 0}
        return {"device": "gpu", **workers}
    device = {} if arguments.device == "auto" else {"device": arguments.device}
    return device if arguments.workers is None else device | {"workers": arguments.workers}


def _dump(config: DecodeConfig, cluster: dict[str, Any]) -> None:
    """Print a YAML file whose job has these settings, those that differ from the defaults."""
    import yaml

    values = asdict(config)
    blank = asdict(DecodeConfig([""], [""], [""], ""))
    job = {f.name: values[f.name] for f in fields(DecodeConfig) if values[f.name] != blank[f.name]}
    job["text"] = [path for path in config.text if path != "-"]
    where = {"cluster": cluster} if cluster else {}
    print(yaml.safe_dump({"output": "runs", **where, "jobs": [{"decode": job}]}, sort_keys=False), end="")


def _print(text: bytes) -> None:
    sys.stdout.buffer.write(text)
