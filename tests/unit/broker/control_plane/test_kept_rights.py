"""The file of the rules that a node heard last."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from semel.broker.control_plane.kept_rights import (
    FILE_NAME,
    HEADER_STRUCT,
    KeptRights,
    RightsFile,
    decode_rights,
    encode_rights,
)
from semel.broker.log import OsFiles
from semel.protos.v1.metadata_pb2 import PrincipalGroup, RightsRecord
from tests.kit.disk import SimFiles
from tests.kit.format_tables import fields, struct_format

KEPT = KeptRights(
    RightsRecord(
        version=7,
        rules=["allow user:alice write topic:orders"],
        groups=[PrincipalGroup(name="readers", members=["user:bob"])],
    ),
    1_700_000_000_000_000,
)


def test_the_layout_is_as_documented() -> None:
    assert struct_format(fields("hard-state.md", "Rights")) == HEADER_STRUCT.format


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = RightsFile(tmp_path, OsFiles())
    assert file.load() is None
    file.save(KEPT)
    assert RightsFile(tmp_path, OsFiles()).load() == KEPT
    newer = KeptRights(RightsRecord(version=8), KEPT.heard_us + 1)
    file.save(newer)
    assert file.load() == newer
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    RightsFile(tmp_path, OsFiles()).save(KEPT)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_a_damaged_file_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    raw = encode_rights(KEPT)
    assert decode_rights(raw) == KEPT
    for end in range(len(raw)):
        assert decode_rights(raw[:end]) is None
    for at in range(len(raw)):
        assert decode_rights(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]) is None
    assert decode_rights(raw + b"x") is None
    files = SimFiles()
    path = Path("/data") / FILE_NAME
    files.open(path, create=True).write([raw[:-1]], 0)
    with caplog.at_level(logging.WARNING):
        assert RightsFile(path.parent, files).load() is None
    assert "damaged" in caplog.text
