"""Read word lattices: text of Kaldi and OpenFst, and the standard lattice format (SLF) of HTK."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mgpu_ngram.core.errors import SHOWN_CHARACTERS, InputError
from mgpu_ngram.core.ngrams.words import split_words
from mgpu_ngram.core.utf8 import to_text

EMPTY_LABELS = frozenset({"", "<eps>", "!NULL", "<s>", "</s>", "!SENT_START", "!SENT_END", "!ENTER", "!EXIT"})
LONG_NAMES = {
    "UTTERANCE": "U", "NODES": "N", "LINKS": "L", "WORD": "W", "START": "S", "END": "E", "acoustic": "a",
    "language": "l",
}  # fmt: skip
SLF_FIELD = re.compile(
    r"""(?P<key>[^\s=]+)(?:=(?:"(?P<double>(?:\\.|[^"\\])*)"(?!\S)|'(?P<single>(?:\\.|[^'\\])*)'(?!\S)|(?P<plain>\S*)))?""",
    re.ASCII,
)
BARS = re.compile(r"^\|{3}(?!\|)|(?<!\|)\|{3}$")
SLF_ESCAPES = re.compile(r"(?P<bytes>(?:\\[0-7]{3})+)|\\(?P<character>.)")


class Arc(NamedTuple):
    """An arc from node to node. `word` is "" where it has none; `scores` are logarithms, by feature."""

    source: int
    target: int
    word: str
    scores: tuple[float, float]


@dataclass
class Lattice:
    """A lattice without cycles: node 0 is the start, the last node the end; every arc leads to a greater node.

    word_A      words of arcs; "" for none
    source_A    int64, sorted
    target_A    int64
    score_AF    float64, natural logarithms, by feature
    """

    id: str
    nodes: int
    word_A: list[str]
    source_A: np.ndarray
    target_A: np.ndarray
    score_AF: np.ndarray


def split_lattices(text: str, format: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (place for messages, lines) of each lattice of a file; SLF has one in a file."""
    if "\0" in text:
        raise InputError(
            f"{name!r} has NUL bytes, so it is not text; write lattices as text: lattice-copy ark:FILE ark,t:- for "
            "Kaldi, fstprint for OpenFst"
        )
    if format == "slf":
        yield repr(name), text.split("\n")
        return
    start, lines = 1, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if split_words(line):
            lines.append(line)
        else:
            if lines:
                yield f"{name!r}, the lattice at line {start:,}", lines
            start, lines = number + 1, []


def parse_lattice(lines: Sequence[str], format: str, default_id: str | None) -> Lattice:
    """Return the lattice of lines, without arcs of infinite cost, which no path may take.

    default_id  id if the lattice has none; None: unknown

    Raises InputError, without the place.
    """
    if format == "slf":
        name, arcs, start, ends = _parse_slf(lines)
    else:
        name, arcs, start, ends = _parse_kaldi(lines)
    possible = [arc for arc in arcs if -math.inf not in arc.scores]
    ends = {node: scores for node, scores in ends.items() if -math.inf not in scores}
    if not name:
        if default_id is None:
            raise InputError(
                "the lattice has no id, and an earlier file that could not be read leaves its number unknown; give it "
                "an id, or mend that file"
            )
        name = default_id
    if len(split_words(name)) > 1 or BARS.search(name):
        raise InputError(f"the id {_shown(name)} has white space, or begins or ends with |||; give it another name")
    for word in sorted({arc.word for arc in possible}):
        if len(split_words(word)) > 1 or BARS.search(word):
            raise InputError(
                f"the word {_shown(word)} would be read as several words or as the end of a text in an n-best list; "
                "rename it"
            )
    return _sorted(name, possible, start, ends)


def _shown(text: str) -> str:
    """Return the beginning of a line or a word, for a message."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")


Ends = dict[int, tuple[float, float]]


def _parse_kaldi(lines: Sequence[str]) -> tuple[str, list[Arc], int, Ends]:
    """Return (id, arcs, start, scores of final nodes): an id alone on its line, then arcs and final nodes."""
    rows = [split_words(line) for line in lines]
    name, arcs, ends = "", list[Arc](), dict[int, tuple[float, float]]()
    if len(rows[0]) == 1:
        name, rows = rows[0][0], rows[1:]
    start = None
    for row in rows:
        try:
            source = _node(row[0])
            start = source if start is None else start
            if len(row) <= 2:
                ends[source] = _costs(row[1]) if len(row) == 2 else (0.0, 0.0)
                continue
            if len(row) > 5:
                raise ValueError
            weight = row[-1] if len(row) == 5 or (len(row) == 4 and _is_weight(row[3])) else ""  # else two labels
            word = row[3] if len(row) == 5 or (len(row) == 4 and not weight) else row[2]
            arcs.append(Arc(source, _node(row[1]), "" if word in EMPTY_LABELS else word, _costs(weight)))
        except InputError as error:
            raise InputError(f"{_shown(' '.join(row))} {error}") from None
        except ValueError:
            raise InputError(
                f"{_shown(' '.join(row))} is neither an arc 'from to word graph,acoustic' nor a final node "
                "'node graph,acoustic'; correct it"
            ) from None
    if start is None:
        raise InputError("the lattice has no arc; leave it out")
    return name, arcs, start, ends


def _node(text: str) -> int:
    """Return the number of a node. Raises ValueError for anything but digits."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    """Return the value of a number. Raises ValueError, also for digits that Python alone reads: 1_0 and those of other
    scripts."""
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)


def _is_weight(text: str) -> bool:
    """Return whether a field, a label or a weight, is a weight: "graph" or "graph,acoustic,...", with a number."""
    return any(map(_is_number, text.split(",")[:2]))


def _is_number(text: str) -> bool:
    """Return whether a text is a number, as programs write it; words such as nan or inf are not."""
    if not any(map(str.isdigit, text)):
        return text.removeprefix("-") == "Infinity"  # of OpenFst
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _costs(text: str) -> tuple[float, float]:
    """Return the logarithms of costs "graph,acoustic,..." or "graph"; "" is 0. Raises ValueError, and InputError for
    numbers that are no costs.
    """
    graph, _, rest = text.partition(",")
    acoustic = rest.partition(",")[0]
    values = _number(graph) if graph else 0.0, _number(acoustic) if acoustic else 0.0
    if wrong := next((value for value in values if math.isnan(value) or value == -math.inf), 0.0):
        raise InputError(f"has the cost {wrong}; a cost is a number, or inf where no path may pass: correct it")
    return 0.0 - values[0], 0.0 - values[1]


def _parse_slf(lines: Sequence[str]) -> tuple[str, list[Arc], int, Ends]:
    """Return (id, arcs, start, scores of the final node)."""
    header: dict[str, str] = {}
    nodes: list[tuple[int, str]] = []
    links: list[dict[str, str]] = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        fields, is_whole = _slf_fields(line)
        try:
            if not is_whole and not fields.keys().isdisjoint("IJ"):
                raise ValueError
            if "I" in fields:
                nodes.append((_node(fields["I"]), fields.get("W", "")))
            elif "J" in fields:
                _node(fields["S"]), _node(fields["E"])
                links.append(fields)
            else:
                header |= fields
        except (KeyError, ValueError):
            raise InputError(
                f"{_shown(line.strip())} is neither a node 'I=0 W=word' nor a link 'J=0 S=0 E=1'; correct it"
            ) from None
        if "SUBLAT" in fields:
            raise InputError("sublattices are not read; expand them with HLRescore")
    if not links:
        raise InputError("the lattice has no link such as 'J=0 S=0 E=1'; give a lattice in SLF")
    words = dict(nodes)
    if len(words) < len(nodes):
        raise InputError("several nodes have one number 'I='; give a file for each lattice")
    for name, counted in ("N", nodes), ("L", links):
        if header.get(name, str(len(counted))) != str(len(counted)):
            raise InputError(
                f"{name}={header[name]} but there are {len(counted)}; the lattice is truncated: write it again"
            )
    log = _logarithm(header.get("base", ""))
    arcs = []
    for link in links:
        source, target = int(link["S"]), int(link["E"])
        if source not in words or target not in words:
            raise InputError(f"link J={link['J']} joins a node that is missing; add its line 'I=...'")
        try:
            scores = log(link.get("l")), log(link.get("a"))
        except ValueError:
            raise InputError(
                f"link J={link['J']} has a score that is not a number, or infinitely high; correct it"
            ) from None
        word = link.get("W", words[target])
        arcs.append(Arc(source, target, "" if word in EMPTY_LABELS else word, scores))
    start = _only("start", header, set(words) - {arc.target for arc in arcs})
    end = _only("end", header, set(words) - {arc.source for arc in arcs})
    return header.get("U", ""), arcs, start, {end: (0.0, 0.0)}


def _slf_fields(line: str) -> tuple[dict[str, str], bool]:
    """Return (the fields of a line, whether all have a value). Values may be in quotes and have escapes, as HTK writes
    strings."""
    fields, is_whole = {}, True
    for found in SLF_FIELD.finditer(line):
        key, values = (
            found["key"],
            [found[style] for style in ("double", "single", "plain") if found[style] is not None],
        )
        value = values[0] if values else ""
        is_whole &= bool(values)
        fields[LONG_NAMES.get(key, key)] = SLF_ESCAPES.sub(_unescaped, value) if "\\" in value else value
    return fields, is_whole


def _unescaped(found: re.Match[str]) -> str:
    """Return what escapes stand for: bytes of UTF-8 by octal numbers, or a character as it is."""
    if found["character"]:
        return found["character"]
    data = bytes(int(octal, 8) & 0xFF for octal in found["bytes"].split("\\")[1:])
    return to_text(data)


def _logarithm(base: str) -> Callable[[str | None], float]:
    """Return the function from a score's text to its natural logarithm; base 0: scores are probabilities."""
    try:
        value = _number(base) if base else math.e
        unit = math.log(value) if value else 0.0
        if value == 1:
            raise ValueError
    except ValueError:
        raise InputError(
            f"base={base} is not a base of logarithms; give base=2.71828, or 0 for probabilities"
        ) from None

    def log(text: str | None) -> float:
        if text is None:
            return 0.0
        number = _number(text)
        score = number * unit if unit else math.log(number) if number else -math.inf
        if math.isnan(score) or score == math.inf:
            raise ValueError
        return score

    return log


def _only(which: str, header: dict[str, str], found: set[int]) -> int:
    """Return the node that the header names as start or end, else the only node without links into it, or from it."""
    if which in header:
        try:
            return _node(header[which])
        except ValueError:
            raise InputError(f"{which}={header[which]} is not the number of a node; correct it") from None
    if len(found) != 1:
        raise InputError(f"{len(found)} nodes may be the {which} node; give its number in the header: {which}=0")
    return found.pop()


def _sorted(name: str, arcs: list[Arc], start: int, ends: Ends) -> Lattice:
    """Return the lattice of the arcs on paths from the start to an end, nodes in topological order."""
    arcs = [*arcs, *(Arc(node, _END, "", scores) for node, scores in ends.items())]
    useful = _reached({start}, arcs) & _reached(
        {_END}, [arc._replace(source=arc.target, target=arc.source) for arc in arcs]
    )
    arcs = [arc for arc in arcs if arc.source in useful and arc.target in useful]
    if not arcs:
        raise InputError("no path leads from the start to a final node; add one, or leave the lattice out")
    waits = dict.fromkeys(useful, 0)
    leaving: dict[int, list[int]] = {}
    for arc in arcs:
        waits[arc.target] += 1
        leaving.setdefault(arc.source, []).append(arc.target)
    order: dict[int, int] = {}
    free = [start] if not waits[start] else []
    while free:
        node = free.pop()
        order[node] = len(order)
        for target in leaving.get(node, ()):
            waits[target] -= 1
            if not waits[target]:
                free.append(target)
    if len(order) < len(useful):
        raise InputError("the lattice has a cycle; remove it")
    arcs.sort(key=lambda arc: (order[arc.source], order[arc.target]))
    return Lattice(
        name,
        len(order),
        [arc.word for arc in arcs],
        np.array([order[arc.source] for arc in arcs]),
        np.array([order[arc.target] for arc in arcs]),
        np.array([arc.scores for arc in arcs], np.float64),
    )


_END = -1  # a node after all final ones


def _reached(first: set[int], arcs: list[Arc]) -> set[int]:
    """Return the nodes that arcs reach from the first ones."""
    leaving: dict[int, list[int]] = {}
    for arc in arcs:
        leaving.setdefault(arc.source, []).append(arc.target)
    found, rest = set(first), list(first)
    while rest:
        for target in leaving.get(rest.pop(), ()):
            if target not in found:
                found.add(target)
                rest.append(target)
    return found
