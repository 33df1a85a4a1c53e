"""Read YAML files strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.utf8 import without_mark


def read_yaml(path: str | Path, holds: str) -> dict[Any, Any]:
    """Return the mapping of a YAML file.

    holds  the mapping in words, such as "a mapping with keys output and jobs"

    Raises InputError for a file that cannot be read, is not YAML, holds something else, or gives a key twice.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from None
    except ValueError as error:  # NUL in the path
        raise InputError(f"{str(path)!r} cannot be read ({error}); give the path of a YAML file") from None
    return parse_yaml(data, path, holds)


def parse_yaml(data: bytes, name: str | Path, holds: str) -> dict[Any, Any]:
    """Return the mapping in the text of a YAML file. Raises InputError as `read_yaml`."""
    import yaml

    try:
        document = yaml.load(without_mark(data).decode(), _loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{name}: is not YAML{where}: {error.problem}; correct it there") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: is not YAML: {' '.join(str(error).split())}; save it as UTF-8 text") from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deep; give {holds}") from None
    if not isinstance(document, dict):
        kind = "empty" if document is None else f"of type {type(document).__name__}"
        raise InputError(f"{name}: is {kind} but must be {holds}")
    return document


def _loader() -> Any:
    """Return a YAML loader that refuses a key given twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in seen:
                        mark = key.start_mark
                        raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader
