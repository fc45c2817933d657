"""Checks of a log whose topic compares message ids: what was dropped, tables, queues, a slave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Places
from semel.broker.dedup.id_store import MemoryIdStore
from semel.broker.dedup.looked_up import prints_of
from semel.broker.dedup.published_ids import read_arrived
from semel.broker.state import BatchVerifier, Published, State, TableVerifier
from semel.broker.state.apply.results import IdsChecked
from semel.protos.batch import BROKER_HEADER_BYTES, check_batch
from semel.protos.columns import decode_columns
from semel.protos.dropped import Verdict, read_answer
from semel.protos.frames import iter_records
from tests.kit.id_group import OTHER, SEED, IdGroup
from tests.kit.state_log import KEY


def dropped_of(decision: Any) -> list[tuple[int, int, int, Verdict]]:
    answer = read_answer(decision.checked.decision.answer)
    return [(each.sequence, each.queue_id, each.offset, each.verdict) for each in answer]


def verify(group: IdGroup, start: int = 0) -> None:
    """Recomputes tables and queues from the log, the tables from entry `start` on."""
    state = State()
    for frame in group.frames[:start]:
        state.apply_frame(frame)
    table = TableVerifier(state if start else None)
    for frame in group.frames[start:]:
        table.feed(frame)
    assert table.problems == []
    for key in (KEY, OTHER):
        queue = group.state.queues[key]
        assert table.log_end_offset(key) == queue.log_end_offset
        assert table.queue_digest(key) == group.state.producers.queue_digest(key)
        batches = BatchVerifier(key, 0, queue.log_end_offset, gaps=True)
        for extent in queue.extents_from(0, 1 << 40):
            stored = group.payload(extent.index, extent.position)
            batches.feed(
                extent.base_offset, extent.count, stored, extent.first_row, extent.append_time_us
            )
        batches.hold_against(table.windows(key))
        report = batches.finish()
        assert report.problems == ()
        assert (report.duplicates, report.missing) == (0, 0)


def check_slave(group: IdGroup) -> None:
    """A node that only applies the log finds the same ids at the same places."""
    state, index = State(), IdIndex(MemoryIdStore(), KEY.topic_id, SEED, memory_ids=100)
    for frame in group.frames:
        follow(group.fingerprints, state, index, frame, lambda *at: group.payload(*at[:2]))
    everything = group.look_up(group.batch([(b"%d" % n, b"") for n in range(16)]))._prints.keys
    found = []
    for each in (index, group.index):
        search = each.search_disk(each.search_memory(everything, 0), everything, 0)
        hits, places = search.hits, each.places_of(search.hits.arrivals)
        columns = [column.tolist() for column in (*hits, *places)]
        found.append(columns)
    assert found[0] == found[1]


def follow(
    prints: Fingerprints,
    state: State,
    index: IdIndex,
    frame: bytes,
    read: Callable[[int, int, int], bytes] = lambda *_: b"",
) -> None:
    """Applies a frame, and adds the ids of its batches as a slave does."""
    results = state.apply_frame(frame)
    records = list(iter_records(frame))
    for at, result in enumerate(results):
        if isinstance(result, Published) and result.arrived:
            found = read_arrived(frame, {KEY.topic_id: prints}, read)
            for topic_id, first_arrival, ids in result.arrived:
                arrived = found[topic_id]
                assert len(arrived.keys) == ids
                index.add(arrived.keys, arrived.digests, arrived.places, first_arrival)
        if isinstance(result, IdsChecked) and result.ids:
            data = bytes(records[at + 1][2])[BROKER_HEADER_BYTES:]
            batch: Any = results[at + 1]
            of = prints_of(prints, decode_columns(data, check_batch(data)))
            places = Places.of(
                result.first_arrival, batch.queue_key.queue_id, batch.base_offset, of.rows
            )
            index.add(of.keys, of.digests, places, result.first_arrival)
