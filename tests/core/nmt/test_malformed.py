"""Malformed models and vocabularies, made by rules and by seed: each is refused in one line, or harmless."""

import gzip
import json
import random
import struct
import zipfile

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary

WORDS = {"</s>": 0, "<unk>": 1, "a": 2, "b\u00e9": 3, "c:": 4, '"': 5}


def refused(load, path, what):
    """Return whether a file is refused; any other error than one line fails the test."""
    try:
        load(str(path))
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 1000, f"{what}: {message!r}"
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return False


def changed_arrays(array, rng):
    """Yield (what, a wrong array in the place of one), all of which must be refused."""
    yield "one row more", np.concatenate([array, array[:1]])
    yield "one more column", np.concatenate([array, array[..., :1]], axis=-1)
    yield "no rows", array[:0]
    yield "three axes", array[None, None]
    yield "a number", np.float32(1)
    yield "integers", array.astype(np.int32)
    yield "complex numbers", array.astype(np.complex64)
    yield "text", array.astype("U4")
    yield "objects", array.astype(object)
    wrong = array.copy()
    wrong.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    yield "not finite", wrong


@pytest.mark.parametrize("kind", [{}, {"norm": "marian"}, {"norm": "nematus", "transitions": 1}, {"cell": "mlstm"}])
def test_models_with_one_wrong_tensor(random_tensors, save_model, kind):
    """Every way to be wrong, each in another tensor."""
    tensors, rng = random_tensors(**kind), random.Random(str(kind))
    free = ("decoder_c_tt", "Wemb", "Wemb_dec", "ff_logit_W")  # with more rows, a sound model of more words
    names = rng.sample(sorted(set(tensors) - set(free)), 12)
    for name in names:
        wrong = list(changed_arrays(tensors[name], rng))
        for what, array in rng.sample(wrong, 3):
            path = save_model(tensors | {name: array})
            assert refused(load_nmt_model, path, f"{name} as {what}"), f"{name} as {what} is read"


def test_archives_with_changed_bytes(random_tensors, save_model, tmp_path):
    """Bytes that are changed, cut off, doubled or moved: 100 files; a sum of weights finds the ones in tensors."""
    data = (tmp_path / save_model(random_tensors())).read_bytes()
    path, rng, found = tmp_path / "changed.npz", random.Random(1), 0
    for i in range(100):
        changed = bytearray(data)
        at, size = rng.randrange(len(data)), rng.randrange(1, 64)
        if i % 4 == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif i % 4 == 1:
            del changed[at : at + size]
        elif i % 4 == 2:
            changed[at : at + size] = rng.randbytes(size)
        else:
            changed[at:at] = changed[at : at + size]
        path.write_bytes(changed)
        found += refused(load_nmt_model, path, f"file {i}")
    assert found >= 90


def header_of(text):
    """Return a .npy array of some bytes with a header."""
    header = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"hello",
        header_of(""),
        header_of("{}"),
        header_of("[1]"),
        header_of("{'descr': '<f4', 'fortran_order': False}"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8)}"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (2**62, 8)}"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}"),
        header_of("{'descr': '<f4', 'fortran_order': 3, 'shape': (4,)}"),
        header_of("{'descr': '|V99', 'fortran_order': False, 'shape': (4,)}"),
        header_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}"),
        header_of("{'descr': 'nonsense', 'fortran_order': False, 'shape': (4,)}"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os')}"),
        header_of("{" * 9000),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': (4,"),
        header_of("{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 900 + "}"),
    ],
)  # fmt: skip
def test_tensors_with_wrong_headers(random_tensors, save_model, tmp_path, content):
    path = tmp_path / save_model(random_tensors())
    other = tmp_path / "other.npz"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, content if name == "encoder_b.npy" else old.read(name))
    assert refused(load_nmt_model, other, content[:80])


VOCABULARIES = [
    b"", b" \n\n", b"{", b"{}", b"[]", b"[1, 2]", b"3", b"null", b'"a"', b'{"a": 2', b'{"a": -1}', b'{"a": 1.5}',
    b'{"a": true}', b'{"a": null}', b'{"a": "two"}', b'{"a": [2]}', b'{"a": {"b": 2}}', b'{"a": 2, "b": 2}',
    b'{"a": 2, "a": 3}', b'{"a": 99999999999}', b'{"a": 5000}', b'{"a": 1e3}', b'{"a": NaN}', b"{'a': 2}",
    b'{"a" 2}', b'{"a": 2}}', b'{"a": 2} x', b"\xff\xfe{\x00", b'{"\xff": 2}', b"\x1f\x8b", b"\x1f\x8b\x08\x00junk",
    gzip.compress(b'{"a": 2}')[:-9], b"{" * 5000, b'{"a":' * 5000, b"\0\0\0\0",
]  # fmt: skip
YAMLS = [
    b"a: -1\n", b"a: 1.5\n", b"- a\n- b\n", b"a: 2\nb: 2\n", b"a: 2\na: 3\n", b"a: &x 2\nb: *y\n", b"a: [2\n",
    b"a: {b: 2}\n", b"? [a, b]\n: 2\n", b"!!python/object/apply:os.system ['true']: 2\n", b"a: 'x\n", b"\t: 2\n",
    b"%YAML 9\n---\na: 2\n...\nb\n", b"--- a\n--- b\n", b"a: 2: 3\n", b"a:\n", b"a: 0x10\n",
]  # fmt: skip


@pytest.mark.parametrize("named_ends", [False, True])
def test_vocabularies_that_are_none(tmp_path, named_ends):
    for end, contents in (("json", VOCABULARIES), ("yml", YAMLS)):
        for i, content in enumerate(contents):
            path = tmp_path / f"{i}.{end}"
            path.write_bytes(content)
            assert refused(lambda path: load_nmt_vocabulary(path, named_ends), path, content[:80]), content[:80]


def test_vocabularies_with_changed_bytes(tmp_path):
    rng, path = random.Random(2), tmp_path / "words"
    texts = {
        ".json": json.dumps(WORDS, indent=1).encode(),
        ".yml": "".join(f"{json.dumps(word)}: {i}\n" for word, i in WORDS.items()).encode(),
        ".gz": gzip.compress(json.dumps(WORDS).encode(), mtime=0),
    }
    found = 0
    for end, data in texts.items():
        for i in range(60):
            changed = bytearray(data)
            at, size = rng.randrange(len(data)), rng.randrange(1, 8)
            if i % 3 == 0:
                changed[at] ^= 1 << rng.randrange(8)
            elif i % 3 == 1:
                del changed[at : at + size]
            else:
                changed[at:at] = rng.choice([b":", b'"', b"{", b"\n", b"- ", b"\xff", b"&a ", b"7", b"\\u"])
            file = path.with_suffix(end)
            file.write_bytes(changed)
            found += refused(load_nmt_vocabulary, file, bytes(changed))
    assert found >= 120
