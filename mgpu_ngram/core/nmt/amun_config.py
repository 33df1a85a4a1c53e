"""Options of the decoder Amun, from its YAML files and its command line, as settings of the stage `decode`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.small_files import read_lines, read_unpacked
from mgpu_ngram.core.typed_config import suggest
from mgpu_ngram.core.yaml_file import parse_yaml

ALIGNMENT_OPTIONS = {
    "return-alignment": "hard", "return-soft-alignment": "soft", "return-nematus-alignment": "nematus",
}  # fmt: skip
SWITCHES = (
    "normalize", "allow-unk", "n-best", "wipo", "no-debpe", "debpe", "relative-paths", "tensor-cores",
    "use-fused-softmax", "show-weights", "dump-config", *ALIGNMENT_OPTIONS,
)  # fmt: skip
INTEGER_OPTIONS = (
    "beam-size", "max-length", "mini-batch", "maxi-batch", "mini-batch-words", "cpu-threads", "gpu-threads",
)  # fmt: skip
PATHS = ("source-vocab", "target-vocab", "bpe", "input-file", "model", "load-weights")
OTHERS = ("scorers", "weights", "softmax-filter", "max-length-multiple", "devices", "mode")
RENAMED = {"threads-per-device": "gpu-threads"}
IGNORED_OPTIONS = ("threads",)  # options of early releases of Amun, which later releases ignore
REFUSED = {
    "log-progress": "a bar shows the progress on a terminal",
    "log-info": "the summary of -o FILE, and --json, show the same",
}
KNOWN = (*SWITCHES, *INTEGER_OPTIONS, *PATHS, *OTHERS)
SCORER_TYPES = ("nematus", "nematus2")  # types of scorers, in lower case
CELL_KEYS = ("enc-cell", "enc-cell-r", "dec-cell", "dec-cell-2")
CELL_KINDS = ("gru", "lstm", "mlstm")


def read_amun(path: str, relative: bool = False) -> dict[str, Any]:
    """Return the options of a config file of Amun, plain or gzipped, by name.

    relative  paths in the file are relative to its folder, as with the option relative-paths in the file

    Raises InputError for an option that Amun does not have or that is given twice, and for a value of the wrong type.
    """
    name, data = read_unpacked(path, "config file")
    found = parse_yaml(data, name, "a mapping of options of Amun, such as 'scorers'")
    options = {}
    for given, value in found.items():
        option = RENAMED.get(str(given), str(given))
        if option in REFUSED:
            raise InputError(f"{name}: {option} is not used: {REFUSED[option]}; leave it out")
        if option in IGNORED_OPTIONS:
            continue
        if option not in KNOWN:
            raise InputError(f"{name}: unknown option {option!r}; {suggest(option, KNOWN)}")
        options[option] = checked(option, value, name)
    if options.get("relative-paths", relative):
        options = _in_folder(options, os.path.dirname(os.path.abspath(path)))
    return options


def checked(option: str, value: Any, name: str) -> Any:
    """Return the value of an option from the file `name`, or from a flag.

    Raises InputError for a value of the wrong type.
    """
    wanted = ""
    if option in SWITCHES and not isinstance(value, bool):
        wanted = "true or false"
    elif option in INTEGER_OPTIONS and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        wanted = "a whole number, 0 or more"
    elif option == "max-length-multiple" and (isinstance(value, bool) or not isinstance(value, int | float)):
        wanted = "a number"
    elif option in ("target-vocab", "input-file", "load-weights", "mode"):
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        wanted = "" if isinstance(value, str) else "one path" if option != "mode" else "CPU or GPU"
    elif option in ("bpe", "model", "source-vocab"):
        value = value if isinstance(value, list) else [value]
        paths = [item for part in value for item in (part if isinstance(part, list) else [part])]
        wanted = "" if paths and all(isinstance(path, str) for path in paths) else "a path or several"
    elif option in ("scorers", "weights") and not isinstance(value, dict):
        wanted = "a mapping with the names of scorers"
    elif option == "softmax-filter":
        value = value if isinstance(value, list) else [value]
        wanted = "" if _is_filter(value) else "a path, and perhaps two whole numbers"
    elif option == "devices":
        value = value if isinstance(value, list) else str(value).split()
    if wanted:
        raise InputError(f"{name}: {option} is {value!r} but must be {wanted}")
    return value


def _is_filter(value: list[Any]) -> bool:
    numbers = [str(item) for item in value[1:]]
    return 1 <= len(value) <= 3 and isinstance(value[0], str) and all(item.isdecimal() for item in numbers)


def _in_folder(options: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the options with relative paths joined to a folder."""

    def join(value: Any) -> Any:
        if isinstance(value, list):
            return [join(item) for item in value]
        return value if "://" in value else os.path.normpath(os.path.join(folder, value))

    moved = {option: join(value) if option in PATHS else value for option, value in options.items()}
    if "softmax-filter" in moved:
        first, *rest = moved["softmax-filter"]
        moved["softmax-filter"] = [join(first), *rest]
    scorers = moved.get("scorers", {})
    for scorer, how in scorers.items():
        if isinstance(how, dict) and isinstance(how.get("path"), str):
            scorers[scorer] = how | {"path": join(how["path"])}
    return moved


def amun_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `decode` for options of Amun. Raises InputError for options that contradict each other.

    `placement_of` returns the options that choose the devices.
    """
    settings = _models(options)
    same = (
        "beam-size",
        "max-length",
        "max-length-multiple",
        "allow-unk",
        "mini-batch",
        "maxi-batch",
        "mini-batch-words",
    )
    settings |= {option.replace("-", "_"): options[option] for option in (*same, "bpe", "wipo") if option in options}
    for option in ("source-vocab", "target-vocab"):
        if option in options:
            settings[option.replace("-", "_")] = options[option]
    if "input-file" in options:
        settings["text"] = [options["input-file"]]
    if options.get("normalize"):
        settings["length_penalty"] = 1.0
    if options.get("n-best"):
        settings["n_best"] = options.get("beam-size", 1)
    if options.get("no-debpe") or options.get("debpe") is False:
        settings["debpe"] = False
    if options.get("tensor-cores"):
        settings["dtype"] = "float16"
    if options.get("use-fused-softmax") is False:
        raise InputError("use-fused-softmax is false but softmax and search are one pass here; leave it out")
    wanted = [option for option in ALIGNMENT_OPTIONS if options.get(option)]
    if len(wanted) > 1:
        raise InputError(f"{wanted[0]} and {wanted[1]} are given but a line has one alignment; give one of them")
    if wanted:
        settings["alignment"] = ALIGNMENT_OPTIONS[wanted[0]]
    if "softmax-filter" in options:
        path, *numbers = options["softmax-filter"]
        names = ("first_words", "most_translations")
        settings["softmax_filter"] = path
        settings |= {name: int(number) for name, number in zip(names, numbers, strict=False)}
    if 0 < options.get("maxi-batch", 0) < options.get("mini-batch", 0):
        raise InputError(
            f"maxi-batch is {options['maxi-batch']} but must be at least mini-batch, {options['mini-batch']}"
        )
    return settings


def placement_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the placement settings among options of Amun: device, workers and devices, as far as they are given.

    devices  "all", or numbers of GPUs
    """
    threads, mode = options.get("cpu-threads", 0), options.get("mode", "").upper()
    if mode not in ("", "CPU", "GPU"):
        raise InputError(f"mode is {options['mode']!r} but must be CPU or GPU; or give --device")
    if options.get("gpu-threads", 1) > 1:
        raise InputError(
            f"gpu-threads is {options['gpu-threads']} but one thread keeps a GPU busy; leave it out, and give a larger "
            "--mini-batch"
        )
    if threads or mode == "CPU":
        return {"device": "cpu", "workers": threads if threads > 1 else 0}
    devices = [str(device) for device in options.get("devices", [])]
    if devices == ["all"]:
        return {"devices": "all"}
    if not all(device.isdecimal() for device in devices):
        raise InputError(f"devices is {' '.join(devices)!r} but must be all, or numbers of GPUs, such as 0 1")
    if devices:
        return {"devices": [int(device) for device in devices]}
    return {"device": "gpu"} if mode == "GPU" else {}


def _models(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the models: files, names, weights, columns."""
    if "model" in options:
        scorers: dict[str, Any] = {f"F{i}": {"path": path} for i, path in enumerate(options["model"])}
        weights = {name: options.get("weights", {}).get(name, 1.0) for name in scorers}
    elif "scorers" in options:
        scorers, weights = (  # YAML reads a name such as 0 as a number
            {str(name): value for name, value in options.get(option, {}).items()} for option in ("scorers", "weights")
        )
    else:
        return {}
    names = list(scorers) if "model" in options else sorted(scorers)  # --weights has the order of --model
    if "load-weights" in options:
        weights |= _loaded_weights(options["load-weights"])
    if missing := sorted(set(names) ^ set(weights)):
        raise InputError(
            f"scorers are {', '.join(names) or 'none'} but weights are {', '.join(weights) or 'none'}; "
            f"give {missing[0]} in both or in none"
        )
    found = [_scorer(name, scorers[name]) for name in names]
    numbers = [_number(name, weights[name]) for name in names]
    columns = [column for _, column in found]
    settings: dict[str, Any] = {"models": [path for path, _ in found]}
    if names != [f"F{i}" for i in range(len(names))]:
        settings["names"] = names
    if any(number != 1 for number in numbers):
        settings["weights"] = numbers
    return settings | ({"columns": columns} if any(columns) else {})


def _scorer(name: str, how: Any) -> tuple[str, int]:
    """Return (path, column) of a scorer."""
    if not isinstance(how, dict) or not isinstance(how.get("path"), str):
        raise InputError(f"scorer {name} is {how!r} but must be a mapping with a path")
    kind = str(how.get("type", SCORER_TYPES[0])).lower()
    if kind == "kenlm":
        raise InputError(
            f"scorer {name} is an n-gram model; give it as --lm FILE --lm-weight W (in YAML lm, lm_weight)"
        )
    if kind not in SCORER_TYPES:
        raise InputError(
            f"scorer {name} has the type {how['type']!r}; models are of type Nematus; for others leave it out"
        )
    for key, value in how.items():
        if key in CELL_KEYS and value not in CELL_KINDS:
            raise InputError(f"scorer {name} has {key} {value!r} but cells are {', '.join(CELL_KINDS)}; leave it out")
        if key not in ("path", "type", "tab", *CELL_KEYS):
            raise InputError(
                f"scorer {name} has the unknown key {key!r}; {suggest(str(key), ('path', 'tab', *CELL_KEYS))}"
            )
    column = how.get("tab", 0)
    if isinstance(column, bool) or not isinstance(column, int) or column < 0:
        raise InputError(f"scorer {name} reads tab {column!r} but columns are numbers from 0")
    return how["path"], column


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"the weight of {name} is {value!r} but must be a number")
    return float(value)


def _loaded_weights(path: str) -> dict[str, float]:
    """Return the weights of a file of lines "NAME= weight"."""
    name, lines = read_lines(path, "file of weights")
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        scorer, equals, value = line.partition("= ")
        try:
            found[scorer.strip()] = float(value if equals else "")
        except ValueError:
            raise InputError(f"line {number} of {name!r} is {line!r} but must be 'NAME= weight'") from None
    return found


def weight_lines(options: Mapping[str, Any], weights: Sequence[float] | None = None) -> list[str]:
    """Return the lines "NAME= weight" of --show-weights; `weights`, if given, replace those of the options.

    Raises InputError if there are no models, or other than one weight for each model.
    """
    settings = _models(options)
    models = settings.get("models", [])
    if not models:
        raise InputError("there is no model, so there are no weights; give MODEL.npz or -c")
    names = settings.get("names") or [f"F{i}" for i in range(len(models))]
    shown = weights or settings.get("weights") or [1.0] * len(models)
    if len(shown) != len(models):
        raise InputError(f"there are {len(models)} models but {len(shown)} weights; give one for each model")
    return [f"{name}= {weight:g}" for name, weight in zip(names, shown, strict=True)]
