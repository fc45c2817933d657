"""`semel verify` reads compacted queues: what is right passes, and each wrong is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from semel.broker.compaction import NewestOffsets
from semel.broker.state import BatchVerifier, Extent, QueueReport
from semel.protos.batch import BROKER_HEADER_BYTES, decode_broker_header
from tests.kit.compacting import SEED, CompactedGroup
from tests.kit.state_log import KEY


@pytest.fixture
def group() -> CompactedGroup:
    made = CompactedGroup()
    for number in range(5):
        made.send([(b"a", b"%d" % number), (b"b%d" % number, b"x")], producer=1 + number % 2)
    made.send([(b"b1", None), (b"a", b"last")])
    made.compact(run_extents=3)
    made.send([(b"a", b"more")])
    return made


def verified(group: CompactedGroup, change: Any = None, **known: int) -> QueueReport:
    """What the verifier says when one of the extents is `change`d."""
    queue = group.state.queues[KEY]
    gaps_to = known.get("gaps_to", queue.compaction.gaps_to)
    verifier = BatchVerifier(KEY, queue.log_start_offset, queue.log_end_offset, gaps_to=gaps_to)
    for number, extent in enumerate(queue.extents_from(queue.log_start_offset, 1 << 40)):
        stored = group.stored(extent)
        if change is not None and number == 0:
            extent, stored = change(extent, stored)
        verifier.feed(
            extent.base_offset, extent.count, stored, extent.first_row, extent.append_time_us
        )
    return verifier.finish()


def test_what_is_right_passes(group: CompactedGroup) -> None:
    report = verified(group)
    assert report.ok, report
    assert report.messages == len(group.read()) == 7


def test_gaps_where_there_are_none_are_told(group: CompactedGroup) -> None:
    assert any("no gaps that far" in each for each in verified(group, gaps_to=1).problems)


def test_a_span_that_is_wrong_is_told(group: CompactedGroup) -> None:
    def spoiled(extent: Extent, stored: bytes) -> tuple[Extent, bytes]:
        head = decode_broker_header(stored)
        head = replace(head, span=head.span + 1)
        return extent, head.encode() + stored[BROKER_HEADER_BYTES:]

    assert any(
        "the compacted batch there says" in each for each in verified(group, spoiled).problems
    )


def test_messages_of_other_offsets_are_told(group: CompactedGroup) -> None:
    def spoiled(extent: Extent, stored: bytes) -> tuple[Extent, bytes]:
        head = replace(decode_broker_header(stored), span=1)
        return replace(extent, count=1), head.encode() + stored[BROKER_HEADER_BYTES:]

    report = verified(group, spoiled)
    assert any("have offsets of other batches" in each for each in report.problems)
    assert report.missing


def test_older_messages_that_are_left_are_counted(group: CompactedGroup) -> None:
    newest = NewestOffsets(SEED, 1 << 20)
    for extent in group.state.queues[KEY].extents_from(0, 1 << 40)[:-1]:
        columns, offsets = group.columns(extent)
        if columns is not None:
            newest.add(columns, offsets)
    assert newest.older == 0
    columns, offsets = group.columns(group.state.queues[KEY].extents_from(12, 1)[0])
    assert columns is not None
    newest.add(columns, offsets)
    assert newest.older == 1, "a has a newer message"
