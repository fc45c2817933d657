"""Reads the byte tables of `docs/formats/`, so that documents and code are one thing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FORMATS = Path(__file__).parents[2] / "docs" / "formats"

_CODES = {
    ("u8", 1): "B",
    ("u16", 2): "H",
    ("u32", 4): "I",
    ("u64", 8): "Q",
    ("i8", 1): "b",
    ("i16", 2): "h",
    ("i32", 4): "i",
    ("i64", 8): "q",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of a byte table with fixed offset and size."""

    offset: int
    size: int
    type: str
    name: str

    @property
    def code(self) -> str:
        """The field as struct spells it."""
        return f"{self.size}s" if self.type == "bytes" else _CODES[self.type, self.size]


def tables(document: str, heading: str) -> list[list[dict[str, str]]]:
    """The tables below `heading` of one document, each row by its column names."""
    text = (FORMATS / document).read_text(encoding="utf-8")
    section = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    section = re.split(r"^## ", section, flags=re.MULTILINE)[0]
    found: list[list[dict[str, str]]] = []
    names: list[str] = []
    for line in section.splitlines():
        if not line.startswith("|"):
            names = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not names:
            names = cells
            found.append([])
        elif set("".join(cells)) != {"-"}:
            found[-1].append(dict(zip(names, cells, strict=True)))
    return found


def fields(document: str, heading: str, table: int = 0) -> list[Field]:
    """The rows of a byte table up to the first whose place or size depends on others."""
    fixed: list[Field] = []
    for row in tables(document, heading)[table]:
        if not (row["offset"].isdigit() and row["size"].isdigit()):
            break
        fixed.append(
            Field(
                offset=int(row["offset"]),
                size=int(row["size"]),
                type=row["type"],
                name=row["field"],
            )
        )
    return fixed


def struct_format(described: list[Field]) -> str:
    """The struct format of a table; ValueError when its offsets leave gaps or overlap."""
    position = 0
    for field in described:
        if field.offset != position:
            raise ValueError(f"{field.name} stands at {field.offset}, not at {position}")
        position += field.size
    return "<" + "".join(field.code for field in described)
