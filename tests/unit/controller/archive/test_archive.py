"""The file that metadata travels in: the same bytes for the same content, damage refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.controller.archive import archive as archives
from semel.controller.archive.archive import Archive
from semel.protos.errors import DataDirectoryError, InvalidRequest

SMALL = Archive(
    cluster_id="c", revision=7, entries={"/cluster": b"\x00\xff", "/topics/é\n": b"", "/a": b"x"}
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.dictionaries(keys, st.binary()))
def test_what_is_written_is_read(cluster_id: str, entries: dict[str, bytes]) -> None:
    archive = Archive(cluster_id=cluster_id, revision=1 << 60, entries=entries)
    data = archives.dump(archive)
    assert archives.load(data, "x") == archive
    turned = dict(reversed(list(entries.items())))
    assert archives.dump(Archive(cluster_id=cluster_id, revision=1 << 60, entries=turned)) == data


def test_the_bytes_are_as_documented() -> None:
    assert archives.dump(SMALL).decode().splitlines() == [
        '{"format":"semel-metadata","version":1,"cluster_id":"c","revision":7,"entries":3}',
        '{"key":"/a","value":"eA=="}',
        '{"key":"/cluster","value":"AP8="}',
        '{"key":"/topics/é\\n","value":""}',
        '{"crc32c":"90a906b2"}',
    ]


def test_every_cut_and_every_changed_byte_is_refused() -> None:
    data = archives.dump(SMALL)
    for end in range(len(data)):
        with pytest.raises(DataDirectoryError, match="the file"):
            archives.load(data[:end], "the file")
        for bit in (0x01, 0x20, 0x80):
            with pytest.raises(DataDirectoryError, match="the file"):
                archives.load(data[:end] + bytes([data[end] ^ bit]) + data[end + 1 :], "the file")
    for more in (b"\n", b"x", data):
        with pytest.raises(DataDirectoryError, match="the file"):
            archives.load(data + more, "the file")


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([{"format": "semel-metadata", "version": 2}], "newer program"),
        ([{"format": "other", "version": 1}], "not an export"),
        ([["no", "object"]], "not an export"),
        ([{"format": "semel-metadata", "version": 1, "cluster_id": "c"}], "not an export"),
        (
            [
                {
                    "format": "semel-metadata",
                    "version": 1,
                    "cluster_id": "c",
                    "revision": 1,
                    "entries": 2,
                },
                {"key": "/a", "value": ""},
            ],
            "not an export",
        ),
        (
            [
                {
                    "format": "semel-metadata",
                    "version": 1,
                    "cluster_id": "c",
                    "revision": 1,
                    "entries": 1,
                },
                {"key": "/a", "value": "!"},
            ],
            "not an export",
        ),
    ],
)
def test_other_content_with_a_good_checksum_is_refused(lines: list[object], match: str) -> None:
    content = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    data = content + archives._line({"crc32c": archives._crc(content)})
    with pytest.raises(DataDirectoryError, match=match):
        archives.load(data, "x")


def test_a_file_is_whole_private_and_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.metadata"
    size = archives.write(SMALL, path)
    assert path.stat().st_size == size
    assert path.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    assert archives.read(path) == SMALL
    with pytest.raises(InvalidRequest, match="exists"):
        archives.write(SMALL, path)
    with pytest.raises(InvalidRequest, match="No such file"):
        archives.read(tmp_path / "missing")
