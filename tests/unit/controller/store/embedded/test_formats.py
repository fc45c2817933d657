"""The tables of docs/formats/metadata.md are the structs of the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from semel.controller.store.embedded import dump, hard_state, journal

TEXT = (Path(__file__).parents[5] / "docs" / "formats" / "metadata.md").read_text()
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("`hard_state` is one record", hard_state.RECORD_STRUCT),
        ("`journal.a` and `journal.b` are equal", journal.HEADER_STRUCT),
        ("Frame, followed by", journal.FRAME_STRUCT),
        ("Record, followed by", journal.RECORD_STRUCT),
        ("`dump` is replaced by a rename", dump.HEADER_STRUCT),
    ],
)
def test_layouts_are_as_documented(before: str, code: struct.Struct) -> None:
    table = TEXT.split(before)[1].split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    form, offset = "<", 0
    for start, size, kind, _, _ in rows:
        assert int(start) == offset
        form += f"{size}s" if kind == "bytes" else CODES[kind]
        offset += int(size)
    assert form == code.format
    assert offset == code.size


def test_magics_and_names_are_as_documented() -> None:
    for magic in (
        hard_state.MAGIC,
        journal.HEADER_MAGIC,
        journal.FRAME_MAGIC,
        dump.MAGIC,
    ):
        assert f"`{magic.decode()}`" in TEXT
    for name in (*journal.FILE_NAMES, hard_state.FILE_NAME, dump.FILE_NAME):
        assert f"`{name}`" in TEXT
    assert re.search(rf"\b{journal.DELETES_FROM}\b", TEXT)
