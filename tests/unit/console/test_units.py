"""What people write, and what they are shown."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import click
import pytest
from rich.console import Console

from semel.client import Shift
from semel.console.render import brief, ranges, table
from semel.console.units import Place, TopicQueue


def test_a_shift_stays_within_the_queue() -> None:
    assert Shift(messages=-5).apply(20, 10, 30) == 15
    assert Shift(messages=-15).apply(20, 10, 30) == 10
    assert Shift(messages=100).apply(20, 10, 30) == 30
    assert Shift(messages=3).apply(5, 10, 30) == 10  # what it stood at was trimmed


def test_a_topic_or_one_of_its_queues() -> None:
    kind = TopicQueue()
    assert kind.convert("orders", None, None) == ("orders", None)
    assert kind.convert("orders:12", None, None) == ("orders", 12)
    for wrong in ("", ":1", "orders:", "orders:x", "orders:-1"):
        with pytest.raises(click.BadParameter):
            kind.convert(wrong, None, None)


def test_a_time_is_no_offset_where_only_times_are_taken() -> None:
    kind = Place(time_only=True)
    assert kind.convert("2026-01-31T12:00:00", None, None) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    for wrong in ("earliest", "7", "yesterday"):
        with pytest.raises(click.BadParameter):
            kind.convert(wrong, None, None)


def test_times_are_brief() -> None:
    shown = [brief(ms) for ms in (0, 119_999, 120_000, 7_200_000, 47 * 3_600_000, 172_800_000)]
    assert shown == ["0 s", "119 s", "2 min", "2 h", "47 h", "2 d"]


def test_addresses_stay_whole_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    rows = [["a-topic-with-a-long-name" * 2, "127.0.0.1:17928", "for more than a while"]]
    Console(file=out, width=60).print(table(["topic", "address", "state"], rows))
    assert "127.0.0.1:17928" in out.getvalue()
    assert out.getvalue().replace("\n", "").count("name") == 2  # folded, not cut off
    assert "…" not in out.getvalue()


def test_queues_are_shown_as_ranges() -> None:
    assert ranges([]) == ""
    queues = [("b", 4), ("a", 2), ("a", 0), ("a", 1), ("a", 9), ("b", 6)]
    assert ranges(queues) == "a 0-2,9 · b 4,6"
