"""One digest for equal rows, however they are stored, and another for any other rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from semel.tier import SCHEMA, RowsDigest, digest_of, rows_of
from tests.kit.format_tables import tables
from tests.kit.tier_rows import random_rows


@pytest.mark.parametrize("seed", range(10))
def test_the_digest_does_not_depend_on_how_rows_are_cut(seed: int) -> None:
    rows = rows_of(random_rows(seed, 40))
    rng = random.Random(seed)
    digest = RowsDigest()
    at = 0
    while at < rows.num_rows:
        count = rng.randrange(1, 30)
        digest.update(rows.slice(at, count))
        at += count
    assert digest.hexdigest() == digest_of(rows) == digest_of(rows.combine_chunks())
    again = pa.Table.from_pylist(rows.to_pylist(), SCHEMA)
    assert digest_of(again) == digest_of(rows)


def test_bytes_under_a_null_do_not_count() -> None:
    rows = rows_of(random_rows(3, 5)).combine_chunks().slice(0, 2)
    _valid, offsets, data = pa.array([b"a", b"b"]).buffers()
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    assert hidden.to_pylist() == [None, b"b"]
    clean = pa.array([None, b"b"], pa.binary())
    at = SCHEMA.names.index("key")
    field = SCHEMA.field("key")
    assert digest_of(rows.set_column(at, field, hidden)) == digest_of(
        rows.set_column(at, field, clean)
    )


def _changed(name: str, value: Any) -> Any:
    match value:
        case bytes():
            return value + b"x"
        case None:
            return b""
        case list():
            return [*value, {"key": "k", "value": b""}]
        case int():
            return value + 1
    return value.replace(year=value.year + 1)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_any_change_of_any_column_changes_the_digest(name: str) -> None:
    rows = rows_of(random_rows(8, 20))
    for at in (0, rows.num_rows // 2, rows.num_rows - 1):
        changed = rows.to_pylist()
        changed[at][name] = _changed(name, changed[at][name])
        assert digest_of(pa.Table.from_pylist(changed, SCHEMA)) != digest_of(rows)


def test_order_and_number_of_rows_count() -> None:
    rows = rows_of(random_rows(9, 20)).combine_chunks()
    backwards = rows.take(list(reversed(range(rows.num_rows))))
    found = {digest_of(rows), digest_of(backwards), digest_of(rows.slice(1))}
    assert len(found | {digest_of(rows.slice(0, 0))}) == 4


def test_bytes_that_move_from_one_message_to_the_next_are_noticed() -> None:
    rows = rows_of(random_rows(9, 20)).to_pylist()
    moved = [dict(row) for row in rows]
    moved[0]["value"], moved[1]["value"] = rows[0]["value"] + b"x", rows[1]["value"]
    other = [dict(row) for row in rows]
    other[1]["value"] = b"x" + rows[1]["value"]
    first, second = (digest_of(pa.Table.from_pylist(each, SCHEMA)) for each in (moved, other))
    assert first != second


def test_the_columns_are_those_of_the_document() -> None:
    (described,) = tables("tier.md", "Columns")
    types = {"list<element: struct<key: string, value: binary>>": "headers"}
    for row, field in zip(described, SCHEMA, strict=True):
        assert row["column"] == field.name
        assert row["null"] == ("yes" if field.nullable else "no")
        kind = row["type"].replace("&lt;", "<").replace("&gt;", ">")
        if field.name == "headers":
            assert kind == "list<struct<key: string, value: binary>>"
            assert pa.types.is_list(field.type)
            assert str(field.type.value_type) == "struct<key: string, value: binary>"
        else:
            assert types.get(kind, kind).replace(", UTC", ", tz=UTC") == str(field.type)
