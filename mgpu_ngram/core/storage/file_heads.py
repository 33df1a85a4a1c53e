"""Find the format of a file from its first bytes."""

from __future__ import annotations

import codecs
import json
import re
import shlex
import unicodedata
from typing import Any, NoReturn

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.storage.model_layout import FORMAT
from mgpu_ngram.core.utf8 import without_mark

HEAD_BYTES = 1 << 16  # a head: enough for every magic number, and for several lines of most JSON lines
MAX_HEADER_BYTES = 100_000_000  # bytes of the header of a safetensors file: the format's limit
ARPA, IARPA, KENLM, JSON_LINES = "an ARPA file", "an iARPA file of IRSTLM", "a KenLM binary model", "JSON lines"
JSON_ARRAY, JSON_DOCUMENT = "a JSON array", "one JSON object on several lines"
JSON_LISTS = "lines of JSON arrays"
MATRIX_MARKET, WARC = "a Matrix Market file", "a WARC file"
IRSTLM = "a binary model of IRSTLM"
INTERMEDIATE = "an intermediate model of KenLM"
ZIP = "a ZIP archive"
OUR_MODEL, SAFETENSORS = "a model file of mgpu-ngram", "a safetensors file"
KENLM_SUFFIXES = (".binary", ".bin", ".klm")  # names that KenLM's users give to its binary models
COMPRESSION = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    **{bytes([b]) + b"\x2a\x4d\x18": "zstd" for b in range(0x50, 0x60)},  # a skippable frame, as pzstd writes first
}
UNPACK = {"gzip": "gzip -dc", "bz2": "bzip2 -dc", "xz": "xz -dc", "zstd": "zstd -dc"}  # to standard output
PARQUET = b"PAR1"
WARC_MAGIC = b"WARC/"
BZ2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # a block follows the four bytes of a bz2 header, or its end
UNICODE = {  # byte order marks; UTF-32 first, because its mark begins with that of UTF-16
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1f\x7f]")  # other than NUL and white space
MIN_UTF16_BYTES = 32  # a shorter text may be words of one letter, each before a NUL, which ends a word
NOT_IN_TEXT = ("Cc", "Cn", "Co")  # categories of Unicode: controls, no characters, private ones
KENLM_MAGIC = b"mmap lm http://kheafield.com/code"
MAGIC_NUMBERS = {
    KENLM_MAGIC: KENLM,
    b"KenLM intermediate binary file\n": INTERMEDIATE,
    b"blmt": IRSTLM,
    PARQUET: "a Parquet file",
    b"ARROW1\0\0": "an Arrow file",
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"%PDF-": "a PDF document",
    b"PK\x03\x04": ZIP,
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"SQLite format 3\0": "an SQLite database",
    b"GGUF": "a GGUF model",
    b"Obj\x01": "an Avro file",
    b"FEA1": "a Feather file",
    b"LZIP\x01": "lzip data",
    b"\x1f\x9d": "data of compress (.Z)",
    WARC_MAGIC: WARC,
    b"OggS\0": "an Ogg recording",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}
NOT_ARPA = {  # formats that hold a model or may hold one, and the way out
    **{
        f"{code} text": f"convert it: iconv -f {code} -t UTF-8" for code in ("UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32")
    },
    IARPA: "convert it with compile-lm --text yes",
    IRSTLM: "convert it with compile-lm --text yes",
    **{f"{format} data": "unpack or export the ARPA file in it" for format in COMPRESSION.values()},
}
COUNT_LINE = re.compile(rb"ngram \s*\+?(\d{1,18})=\s*\+?(\d{1,18})\s*")  # in an ARPA file: order, number of n-grams
JSON_NAME = re.compile(r"\.(json|jsonl|ndjson)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
TABLE_NAME = re.compile(r"\.(csv|tsv)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_JSON_SPACE = b" \t\r\x1e"  # RFC 7464 puts 1E before each record
_NO_TEXT = re.compile(rb"\{\s*\}|null")
_STRING = rb'"(?:[^"\\\n]|\\.)*"'
_OBJECT = re.compile(rb"\{\s*" + _STRING + rb"\s*:")  # begins an object
_OBJECT_ON_LINES = re.compile(rb"\{(?:[ \t]*" + _STRING + rb"[ \t]*:[^\n]*)?[ \t\r]*\n\s*+" + _STRING + rb"\s*+:")
_OPEN_OBJECT = re.compile(rb"\{[ \t]*" + _STRING + rb"[ \t]*:[^\n]*[\[{][ \t\r]*\n")
_ARRAY = re.compile(rb"\[\s*+(?:\{\s*+(?:\}\s*,|" + _STRING + rb"\s*:)|[\[\s]*+" + _STRING + rb"\s*+,\s*+[\"\[{])")


def compression(head: bytes) -> str:
    """Return "gzip", "bz2", "xz" or "zstd"; "" for a file that is not compressed."""
    format = next((format for magic, format in COMPRESSION.items() if head.startswith(magic)), "")
    return "" if format == "bz2" and head[4:10] not in BZ2_BLOCKS else format  # text may start with BZh


def is_safetensors(head: bytes) -> bool:
    """Return whether a file begins with the length of a JSON header and the header's brace; it may be cut short."""
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES


def what_begins(head: bytes) -> str:
    """Return the kind of a file, such as "an ARPA file"; "" for text and for unknown formats.

    head  its first bytes, HEAD_BYTES, or all of a shorter file
    """
    if compressed := compression(head):
        return f"{compressed} data"
    for marks in UNICODE, MAGIC_NUMBERS:
        for magic, what in marks.items():
            if not head.startswith(magic):
                continue
            if marks is MAGIC_NUMBERS:
                return what
            if b"\0" in head:  # UTF-16 text has a NUL in every line feed; other files may begin like a mark
                return f"{what} text"
    if is_safetensors(head):
        return OUR_MODEL if FORMAT.encode() in head else SAFETENSORS
    if head[257:262] == b"ustar":
        return "a tar archive"
    if head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"WEBP", b"AVI "):
        return "a RIFF file (sound, image or video)"
    if encoding := unmarked_utf16(head):
        return f"{encoding} text"
    if head[:14].lower() == b"%%matrixmarket":
        return MATRIX_MARKET
    filled = (line for line in without_mark(head).splitlines() if line.strip())
    first = next((line for line in filled if not line.startswith(b"#")), b"")
    if first.rstrip() == b"\\data\\":
        return ARPA
    if first.startswith(b"iARPA"):
        return IARPA
    return _json_kind(head)


def text_format(name: str, head: bytes, format: str = "plain") -> str:
    """Return JSON_LINES, or "" for lines of text.

    name    of the file, which may end in .json, .jsonl, .ndjson, .csv or .tsv
    head    its first bytes, decompressed: HEAD_BYTES, or all of a shorter file
    format  format of the file as stored: "plain", or a result of `compression`

    Raises InputError for a file of another format.
    """
    what, json_name = what_begins(head), JSON_NAME.search(name)
    if what == JSON_LINES:
        return JSON_LINES
    text = without_mark(head).lstrip()
    if json_name and text and not what:
        if set(text.split()) == {b"{}"}:
            return JSON_LINES
        is_line = json_name[1].lower() != "json" and _is_json(text.partition(b"\n")[0])
        if is_line or not text.startswith(b"["):
            raise InputError(
                f"{name!r} at byte 0 is not a JSON object; correct the line, or rename the file if it is plain text"
            )
        what = JSON_ARRAY
    if what:
        refuse(name, what, format)
    if (table := TABLE_NAME.search(name)) and text:
        _refuse_table(name, table[1].lower())
    return ""


def unmarked_utf16(head: bytes) -> str:
    """Return "UTF-16LE" or "UTF-16BE" for text in UTF-16 that has no byte order mark; "" for everything else.

    UTF-16 text has NULs in the high bytes of its characters, and neither controls nor undefined characters. Text in
    UTF-8 or Latin-1 with NULs between words may look like it, but most of its other bytes are not NUL. If both orders
    of bytes make text, the order with more ASCII characters is returned.
    """
    if len(head) % 2 or b"\0" not in head:
        return ""
    is_narrow, found = is_utf8(head) or not CONTROLS.search(head), {}
    if is_narrow and len(head) < MIN_UTF16_BYTES:
        return ""
    for encoding, high in ("UTF-16LE", head[1::2]), ("UTF-16BE", head[::2]):
        if b"\0" not in high or (is_narrow and 2 * high.count(0) <= len(high)):
            continue
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head)  # a head may end inside a pair of surrogates
        except UnicodeDecodeError:
            continue
        if all(char.isspace() or unicodedata.category(char) not in NOT_IN_TEXT for char in text):
            found[encoding] = sum(map(str.isascii, text))
    return max(found, key=lambda encoding: found[encoding], default="")


def is_utf8(head: bytes) -> bool:
    """Return whether bytes are UTF-8; the last character may be cut off."""
    try:
        codecs.getincrementaldecoder("UTF-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def json_keys(head: bytes) -> list[str]:
    """Return the keys of the objects on the lines of a file, in order; lines that are cut or damaged count for none."""
    found: dict[str, None] = {}
    for line in head.split(b"\n"):
        found |= dict.fromkeys(_object_of(line))
    return list(found)


def refuse_as_text(name: str, head: bytes) -> None:
    """Raise InputError for a file that should hold lines of text but has another format, by its first HEAD_BYTES."""
    if what := what_begins(head):
        refuse(name, what)


def refuse(name: str, what: str, format: str = "plain") -> NoReturn:
    """Raise InputError for a file of a kind that is not read, with the way out.

    what    result of `what_begins`
    format  format of the file as stored: "plain", or a result of `compression`
    """
    file = shlex.quote(name)
    unpacked = "" if format == "plain" else f"{UNPACK[format]} {file} | "
    given = file if format == "plain" else "-"
    jq_file = f" {file}" if format == "plain" else ""
    if what == JSON_LINES:
        raise InputError(
            f"{name!r} holds JSON lines, but lines of text are read here; give its texts as lines: "
            f"{unpacked}jq -r .text{jq_file} > text.txt"
        )
    if what == JSON_ARRAY:
        raise InputError(
            f"{name!r} holds a JSON array, which is not read; give JSON lines, an object a line: "
            f"{unpacked}jq -c '.[]'{jq_file} > documents.jsonl"
        )
    if what == JSON_LISTS:
        raise InputError(
            f"{name!r} holds {what}, which are not read; give lines of text: "
            f"{unpacked}jq -r 'join(\" \")'{jq_file} > text.txt"
        )
    if what == JSON_DOCUMENT:
        raise InputError(
            f"{name!r} holds {what}, which is not read; give JSON lines, an object a line: "
            f"{unpacked}jq -c .{jq_file} > documents.jsonl"
        )
    if what.startswith("UTF-"):
        encoding = what.removesuffix(" text")
        raise InputError(
            f"{name!r} is {what}, but text must be UTF-8; convert it: {unpacked}iconv -f {encoding} -t UTF-8 {given}"
        )
    if format != "plain" and what.removesuffix(" data") in UNPACK:
        raise InputError(f"{name!r} holds {what} inside {format} data; unpack it once: {UNPACK[format]} {file} > FILE")
    if what == MATRIX_MARKET:
        raise InputError(
            f"{name!r} is {what}, not text; for lda, save the matrix: "
            "scipy.sparse.save_npz('counts.npz', scipy.io.mmread(FILE).tocsr())"
        )
    if what == WARC:
        raise InputError(
            f"{name!r} is {what}, not text; mgpu-ngram filter reads texts of WET files and writes them as JSON lines"
        )
    raise InputError(f"{name!r} is {what}, not text; give only text files")


def _refuse_table(name: str, kind: str) -> NoReturn:
    """Raise InputError for a file whose name says that it is a table, CSV or TSV."""
    separator = "" if kind == "csv" else ", sep='\\t'"
    raise InputError(
        f"{name!r} is a {kind.upper()} table by its name, which is not read; save it as Parquet: "
        f"pandas.read_csv(FILE{separator}).to_parquet('text.parquet'), or rename it to .txt if its lines are plain text"
    )


def refuse_as_arpa(name: str, head: bytes) -> None:
    """Raise InputError for a file of a known format other than ARPA."""
    what = what_begins(head)
    if what == KENLM:
        raise InputError(
            f"{name!r} is a KenLM binary model, which must be a local file that is not compressed; "
            "unpack it or copy it to this host"
        )
    if what == INTERMEDIATE:
        raise InputError(
            f"{name!r} is {what}, which must be a local file that is not compressed; unpack it or copy it to this host"
        )
    if what and what != ARPA:
        raise InputError(f"{name!r} is {what}; {NOT_ARPA.get(what, 'give an ARPA file or a model file')}")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line; an empty one for other lines."""
    line = without_mark(line).strip()
    if not line.startswith(b"{"):
        return {}
    try:
        found = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _json_kind(head: bytes) -> str:
    """Return JSON_LINES, JSON_ARRAY, JSON_LISTS, JSON_DOCUMENT or "".

    Prose may begin with a bracket and may quote JSON. So only clear structure counts: objects with keys on most lines.
    """
    text = without_mark(head).lstrip()
    if b'"' not in text or (b"{" not in text and b"[" not in text):
        return ""
    is_cut = len(head) >= HEAD_BYTES
    first = text.partition(b"\n")[0]
    if text.startswith(b"["):
        is_line = bool(text[len(first) :].strip()) and _is_json(first)  # and other lines follow
        if (_ARRAY.match(text) and not is_line) or (not is_cut and _is_strings(text)):
            return JSON_ARRAY
        if is_line and all(map(_is_strings, filter(None, text.split(b"\n")[: -1 if is_cut else None]))):
            return JSON_LISTS
    if (_OBJECT_ON_LINES.match(text) or _OPEN_OBJECT.match(text)) and not _is_json(first):
        return JSON_DOCUMENT
    lines = [without_mark(line).strip(_JSON_SPACE) for line in text.split(b"\n")]
    last = lines.pop() if is_cut and len(lines) > 1 else b""  # it may be cut
    lines = [line for line in lines if line and not _NO_TEXT.fullmatch(line)]
    lines = lines or [last]
    objects = [line for line in lines if _OBJECT.match(line)]
    if not objects:
        return ""
    others = [line for line in lines if not _OBJECT.match(line)]
    is_first = lines[0] is objects[0] and bool(_object_of(lines[0]))
    if is_first or 2 * len(others) <= len(objects) or all(map(_is_piece, others)):
        return JSON_LINES
    return ""


def _is_strings(text: bytes) -> bool:
    """Return whether a text is one JSON array that holds a string, an array or an object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and any(isinstance(value, (str, list, dict)) for value in found)


def _is_piece(line: bytes) -> bool:
    """Return whether a line looks like a damaged JSON object, such as the end of one."""
    return line.startswith((b'{"', b"{'")) or (line.endswith((b"}", b"},")) and b'"' in line)
