"""KenLM's binary files: headers and words by hand, and one line for files that are cut short, damaged or foreign."""

import re
import struct

import numpy as np
import pytest

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm import binary_file
from mgpu_ngram.core.kenlm.binary_file import Header, KenlmFile, read_header, slots_of
from mgpu_ngram.core.kenlm.probing import KenlmProbing
from mgpu_ngram.core.kenlm.sizes import probing_bytes
from mgpu_ngram.core.kenlm.trie import KenlmTrie, Pointers
from mgpu_ngram.kernels.common.murmur import murmur_hash

TRIE = "trie"


def read(path):
    """Read all of a file; return its words and the n-grams of each order."""
    file = KenlmFile(path, path.read_bytes())
    sections = KenlmTrie(file) if file.header.is_trie else KenlmProbing(file)
    return file.read_words(sections.end), list(sections.levels())


def changed(content, at, new):
    return content[:at] + new + content[at + len(new) :]


def test_a_header_by_hand(binaries):
    whole = b"mmap lm http://kheafield.com/code format version 5\n".ljust(56, b"\0")
    whole += struct.pack("<3f3IQ", 0, 1, -0.5, 1, 0xFFFFFFFF, 0, 1)
    whole += struct.pack("<B3xfI?3xI", 2, 1.5, 5, True, 1) + struct.pack("<2Q", 7, 2**40)
    assert len(whole) == 124
    header = read_header("m", whole + b"more")
    assert header == Header(5, (7, 2**40), 1.5, True) and header.order == 2 and header.size_bytes == 128
    assert header.is_trie and header.quantized and header.has_arrays
    assert header.pack() == whole + bytes(4)
    for content in binaries.BINARIES.values():
        header = read_header("m", content)
        assert header.pack() == content[: header.size_bytes]


@pytest.mark.parametrize(
    ("at", "new", "why"),
    [
        (34, b"incomplete\n", "that build_binary did not finish"),
        (49, b"4", "of version 4 but must be of version 5"),
        (56, b"\1", "another byte order or word size"),
        (60, struct.pack(">f", 1), "another byte order or word size"),
        (72, b"\xff\xff\0\0", "another byte order or word size"),
        (88, b"\1", "damaged header: order 1,"),
        (92, struct.pack("<f", 0.5), "damaged header: order 3, 0.5 slots per n-gram"),
        (92, struct.pack("<f", np.nan), "damaged header: order 3, nan slots per n-gram"),
        (96, b"\6", "with a damaged header; build it again"),
        (96, b"\0", "search version 1 of a probing model"),
        (104, b"\2", "search version 2 of a trie model"),
        (108, b"\1", "it has 1 1-grams but 5 words"),
        (119, b"\1", "has 447 bytes, but its header asks for .* or more; it is truncated or damaged"),
    ],
)
def test_other_headers_are_refused(put, binaries, at, new, why):
    with pytest.raises(InputError, match=f"model.binary' .*{why}") as caught:
        read(put(changed(binaries.BINARIES[TRIE], at, new)))
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_short(put, binaries, binary_type):
    content = binaries.BINARIES[binary_type]
    for size in [88, 107, 131, *range(132, len(content), 23), len(content) - 1]:
        with pytest.raises(InputError, match="truncated or damaged|damaged header|is a damaged KenLM") as caught:
            read(put(content[:size]))
        assert "\n" not in str(caught.value)


def test_words_that_are_not_those_of_the_hashes(put, binaries, binary_type):
    content = binaries.BINARIES[binary_type]
    naive = content.rindex("naïve".encode())
    with pytest.raises(InputError, match=r"damaged KenLM binary model: word \d, 'maïve', does not have its hash"):
        read(put(changed(content, naive, b"m")))
    with pytest.raises(InputError, match="it ends with 5 words but has the hashes of 6"):
        read(put(content[:-1]))


def test_a_damaged_word_is_found_at_once(put, binaries, binary_type, monkeypatch):
    """No NUL byte is to spare, so no later word is tried as a part of the damaged one."""
    content, tried = binaries.BINARIES[binary_type], []
    monkeypatch.setattr(binary_file, "murmur_hash", lambda *words: tried.append(1) or murmur_hash(*words))
    with pytest.raises(InputError, match="does not have its hash"):
        read(put(changed(content, content.rindex(b"<unk>\0") + 6, b"~")))
    assert len(tried) == 1


def test_bytes_after_the_words_are_ignored(put, binaries, binary_type):
    content = binaries.BINARIES[binary_type]
    words, levels = read(put(content))
    for more in b"c\0", b"c", bytes(9):
        others, same = read(put(content + more))
        assert others == words
        assert all(np.array_equal(a.prob, b.prob) for a, b in zip(levels, same, strict=True))


def test_hashes_in_place_of_words(put, binaries, binary_type):
    """A file of `build_binary -v`."""
    content = binaries.BINARIES[binary_type]
    words, levels = read(put(changed(content, 100, b"\0")[: content.rindex(b"<unk>\0")]))
    spelled, expected = read(put(content))
    assert [words.id(word) for word in spelled] == list(range(6)) and words.id("c") == 0
    assert len(words) == 6 and "a" in words and words.word(0) == "<unk>"
    assert [level.ids.tolist() for level in levels] == [level.ids.tolist() for level in expected]
    with pytest.raises(
        InputError, match="model.binary' holds only hashes of its words, so it can only score text. "
    ) as e:
        list(words)
    assert "\n" not in str(e.value)


def test_damaged_ngrams_of_a_trie(put, binaries):
    unigrams = 136 + 8 * 7
    with pytest.raises(InputError, match="damaged KenLM binary model: its 1-grams do not cover all 2-grams"):
        read(put(changed(binaries.BINARIES[TRIE], unigrams + 16 + 8, b"\7")))
    bigrams = unigrams + 16 * 8
    with pytest.raises(InputError, match="an id in its 2-grams is not one of the ids of 6 words"):
        read(put(changed(binaries.BINARIES[TRIE], bigrams, b"\xff")))


def test_damaged_ngrams_of_a_probing_model(put, binaries):
    content = binaries.BINARIES["probing"]
    bigrams = 136 + 8 + 12 * 9 + 8 * 7
    slots = np.frombuffer(content, "<u8,<f4,<f4", 9, bigrams)["f0"]
    used = int(np.flatnonzero(slots)[0])
    with pytest.raises(InputError, match="1 of its 2-grams are not made of its 1-grams"):
        read(put(changed(content, bigrams + 16 * used, b"\1\2\3\4\5\6\7\x08")))
    with pytest.raises(InputError, match="its table of 2-grams has no empty slot"):
        read(put(changed(content, bigrams, b"".join(struct.pack("<Qff", k, -1, 0) for k in range(1, 10)))))
    with pytest.raises(InputError, match="its table has 5 words but needs 6"):
        read(put(changed(content, 140, b"\7")))
    with pytest.raises(InputError, match="its table has the id 7 but 6 words, whose ids are less"):
        first = int(np.flatnonzero(np.frombuffer(content, "<u8,<u4", 9, 144)["f0"])[0])
        read(put(changed(content, 144 + 12 * first + 8, b"\7")))
    with pytest.raises(InputError, match="its table gives an id to two words"):
        table = np.frombuffer(content, "<u8,<u4", 9, 144)
        first, second = np.flatnonzero(table["f0"])[:2].tolist()
        read(put(changed(content, 144 + 12 * first + 8, struct.pack("<I", table["f1"][second]))))


def test_sizes_of_tables_by_hand():
    assert [slots_of(n, 1.5) for n in (0, 1, 2, 3, 1000)] == [1, 2, 3, 4, 1500]
    assert slots_of(2**24 + 1, 1.5) == 3 * 2**23  # KenLM multiplies float32
    assert Pointers(4, 5) == Pointers.chopping(4, 5, 0) and Pointers(4, 5).inline == 3
    assert Pointers.chopping(63, 64, 8).chopped == 0  # 0, 1 and 2 chopped bits cost the same; KenLM takes the fewest
    assert probing_bytes([2, 1], 1.5) == 8 + 3 * 12 + 3 * 8 + 2 * 12
    # 1,000 n-grams with 4,000 children: 12 bits; x chopped bits cost 64 << x bits, less 1,001 x
    assert Pointers.chopping(1000, 4000, 22) == Pointers(1000, 4000, 4)
    assert Pointers.chopping(1000, 4000, 2).inline == 10 and Pointers.chopping(1000, 4000, 2).values == 4


def test_hashes_of_words(binaries):
    """The values of MurmurHash64A that KenLM's sorted vocabulary holds."""
    hashes = np.frombuffer(binaries.BINARIES[TRIE], "<u8", 5, 144).tolist()
    words = re.findall(rb"[^\0]+", binaries.BINARIES[TRIE][binaries.BINARIES[TRIE].rindex(b"<unk>\0") + 6 :])
    assert sorted(hashes) == hashes and len(words) == 5
    assert [murmur_hash(np.frombuffer(word, np.uint8), 0, len(word)) for word in words] == hashes
