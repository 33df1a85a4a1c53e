"""Records of WARC files: whole ones in any cuts, and damaged ones, which cost no others."""

import bz2
import gzip

import pytest

from mgpu_ngram.core.documents import warc
from mgpu_ngram.core.documents.warc import DamagedRecord, WarcRecord, check_wet, document_of, read_records
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.sources import Source


def record(text, kind="conversion", length=None, **headers):
    """Return a record as Common Crawl writes it."""
    content = text.encode() if isinstance(text, str) else text
    fields = {"WARC-Type": kind, "WARC-Target-URI": "http://a.org/"} | headers
    fields["Content-Length"] = len(content) if length is None else length
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + content + b"\r\n\r\n"


TEXTS = [f"Title {i}\n{'text é ' * i}\n" for i in range(60)]
RECORDS = [record("robots: x\r\n", "warcinfo"), *map(record, TEXTS)]


def read(tmp_path, data, format="plain"):
    """Return (contents of whole records, (reason, offset) of damaged ones)."""
    path = tmp_path / "x.wet"
    path.write_bytes(data)
    found = list(read_records(Source("x.wet", format, len(data), str(path))))
    damaged = [(r.offset, r.reason, r.head) for r in found if isinstance(r, DamagedRecord)]
    return [r.content.decode("utf-8", "replace") for r in found if isinstance(r, WarcRecord)], damaged


def test_a_document_by_hand():
    headers = {
        "warc-target-uri": "http://a.org/", "warc-date": "2024-03-01T00:00:00Z", "warc-record-id": "<urn:uuid:1>",
        "warc-identified-content-language": "eng,deu", "content-type": "text/plain",
    }  # fmt: skip
    fields, text = document_of(WarcRecord(0, headers, b"Title\n\nh\xc3\xa9\n"), "raw")
    assert text == "Title\n\nhé" and fields == {
        "id": "<urn:uuid:1>", "url": "http://a.org/", "date": "2024-03-01T00:00:00Z", "language": "eng", "length": 11,
        "raw": text,
    }  # fmt: skip


@pytest.mark.parametrize("format", ["plain", "members", "gzip", "bz2"])
@pytest.mark.parametrize("probe", [1 << 16, 50])
def test_whole_records_in_any_cuts(format, probe, tmp_path, monkeypatch):
    monkeypatch.setattr(warc, "PROBE_BYTES", probe)
    monkeypatch.setattr(warc, "STRIP_BYTES", 3 * probe)
    joined = b"".join(RECORDS)
    data = {"members": b"".join(map(gzip.compress, RECORDS)), "gzip": gzip.compress(joined)}
    data["bz2"] = bz2.compress(joined)
    found = read(tmp_path, data.get(format, joined), {"members": "gzip"}.get(format, format))
    assert found == (["robots: x\r\n", *TEXTS], [])


def test_records_that_end_in_other_ways(tmp_path):
    """Lines that end with a newline alone, no end of the last record, a text that looks like a record, no text."""
    bare = record("a\n").replace(b"\r\n", b"\n")
    inside = record("x\n").decode()
    data = bare + record(inside) + b"\r\n" + record("") + record("end")[:-4]
    assert read(tmp_path, data) == (["a\n", inside, "", "end"], [])
    assert read(tmp_path, b"") == ([], [])


DAMAGE = {
    "cut short": (RECORDS[7][:-30], "does not end after its 57 bytes"),
    "too long": (record(TEXTS[6], length=9999), "does not end after its 9,999 bytes"),
    "much too long": (record(TEXTS[6], length=10**12), "Content-Length is 1000000000000, no number up to"),
    "no length": (RECORDS[7].replace(b"Content-Length", b"X"), "Content-Length is missing"),
    "no record": (b"<html>\n" * 99, "here begins no WARC record"),
    "an endless header": (b"WARC/1.0\r\n" + b"X: y\r\n" * 20_000, "header of the WARC record"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("probe", [1 << 16, 500])
def test_a_damaged_record_costs_no_other(kind, probe, tmp_path, monkeypatch):
    monkeypatch.setattr(warc, "PROBE_BYTES", probe)
    monkeypatch.setattr(warc, "STRIP_BYTES", 3 * probe)
    damaged, wanted = DAMAGE[kind]
    data = b"".join([*RECORDS[:7], damaged, *RECORDS[8:]])
    texts, found = read(tmp_path, data)
    assert texts == ["robots: x\r\n", *TEXTS[:6], *TEXTS[7:]] and len(found) == 1
    offset, reason, head = found[0]
    assert offset == len(b"".join(RECORDS[:7])) and wanted in reason and damaged.startswith(head[:20])


def test_a_file_cut_short(tmp_path):
    texts, damaged = read(tmp_path, b"".join(RECORDS)[:-104])
    assert texts[1:] == TEXTS[:-1] and damaged[0][1] == "the file ends after 382 of 482 bytes of the text"
    data = b"".join(map(gzip.compress, RECORDS))
    texts, damaged = read(tmp_path, data[:-20], "gzip")
    last = len(data) - len(gzip.compress(RECORDS[-1]))
    assert texts[1:] == TEXTS[:-1] and damaged[0][1] == f"truncated gzip data in the member at byte {last:,}"


def test_damaged_members(tmp_path, monkeypatch):
    """Reading continues at the next member that holds a record, also across the cuts of what is read at once."""
    monkeypatch.setattr(warc, "STRIP_BYTES", 5000)
    monkeypatch.setattr(warc, "HELD_TEXT_BYTES", 2000)
    members = list(map(gzip.compress, RECORDS))
    for i in 10, 11, 40:
        member = bytearray(members[i])
        member[-6 if i == 40 else len(member) // 2] ^= 0xFF  # of the checksum, or of the data
        members[i] = bytes(member)
    texts, damaged = read(tmp_path, b"".join(members), "gzip")
    left = [t for i, t in enumerate(TEXTS) if i not in (9, 10, 39)]  # a text of which only the checksum tells is lost
    assert texts[1:] == left and all("damaged gzip data in the member at byte" in reason for _, reason, _ in damaged)
    assert len(damaged) == 3
    for strip in range(1100, 1500, 7):
        monkeypatch.setattr(warc, "STRIP_BYTES", strip)
        assert read(tmp_path, b"".join(members), "gzip")[0][1:] == left
    monkeypatch.setattr(warc, "PROBE_BYTES", 4)  # checksums come after all text
    assert read(tmp_path, b"".join(members), "gzip")[0][1:] == left
    members = list(map(gzip.compress, RECORDS))
    for junk in range(1090, 1110):  # the next member begins at the end of what is searched at once, and behind it
        monkeypatch.setattr(warc, "STRIP_BYTES", 1100)
        texts, damaged = read(tmp_path, b"".join([*members[:9], b"\xaa" * junk, *members[9:]]), "gzip")
        assert texts[1:] == TEXTS and len(damaged) == 1
    texts, damaged = read(tmp_path, bz2.compress(b"".join(RECORDS))[:-20], "bz2")
    assert "truncated bz2 data" in damaged[0][1]


def test_damage_in_a_member_of_many_records(tmp_path, monkeypatch):
    """What comes before it counts if it is much; else nothing does whose checksum is wrong."""
    data = bytearray(gzip.compress(b"".join(RECORDS)))
    data[-6] ^= 0xFF  # of the checksum
    assert read(tmp_path, bytes(data), "gzip")[0] == []
    monkeypatch.setattr(warc, "PROBE_BYTES", 100)
    monkeypatch.setattr(warc, "HELD_TEXT_BYTES", 1000)
    texts, damaged = read(tmp_path, bytes(data), "gzip")
    assert 20 < len(texts) and texts[1:] == TEXTS[: len(texts) - 1] and len(damaged) == 1


def test_files_without_texts():
    with pytest.raises(InputError, match=r"WARC file of response records, which hold no text; give the files"):
        check_wet("a.warc.gz", record("", "warcinfo") + record("<html>", "response"), "text")
    with pytest.raises(InputError, match="text_column is 'url', which is another field of a WET file"):
        check_wet("a.wet", RECORDS[0], "url")
    check_wet("a.wet", RECORDS[0] + RECORDS[1], "text")
