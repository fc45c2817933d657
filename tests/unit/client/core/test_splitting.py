"""Parts that are taken apart: every row goes to one child, in order, and is found again."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.client.core.batching import Chunk, Outcome, Part, route
from semel.client.core.encoding import encode_part, trim
from semel.client.core.routing import TopicRoute
from semel.client.core.splitting import divide, of_encoded, of_waiting
from semel.client.producer.futures import BulkFuture, SendFuture
from semel.protos.batch import Codec
from semel.protos.ids import ProducerId, QueueId, QueueKey, Sequence, TopicId
from semel.protos.slots import slot_of_key, slots_of_positions
from tests.unit.client.chunks import SPLIT, chunk_of, heirs, topic, values_of

MESSAGES = st.lists(
    st.tuples(st.binary(max_size=30), st.one_of(st.none(), st.binary(max_size=3))),
    min_size=1,
    max_size=50,
)


def encoded(part: Part) -> tuple[bytes, Sequence, Sequence]:
    return encode_part(
        part,
        producer_id=ProducerId(9),
        epoch=1,
        session=1,
        previous_sequence=Sequence(-1),
        codec=Codec.LZ4,
    )


@settings(max_examples=150, deadline=None)
@given(
    messages=MESSAGES,
    limit=st.integers(20, 400),
    positions=st.booleans(),
    sent=st.integers(0, 4),
    cut=st.integers(0, 5),
    last=st.integers(-1, 80),
)
def test_every_row_is_found_again_in_the_child_of_its_slot(
    messages: list[tuple[bytes, bytes | None]],
    limit: int,
    positions: bool,
    sent: int,
    cut: int,
    last: int,
) -> None:
    """The first parts are batches by now; of the very first some rows are in the parent."""
    before = topic(2)
    after = before.after_split(SPLIT)
    values = [b"%d|" % row + value for row, (value, _) in enumerate(messages)]
    keys = [key for _, key in messages]
    numbers = list(range(0, 2 * len(values), 2))
    chunk = chunk_of(values, keys=keys, positions=numbers if positions else None)
    resume = np.full(2, -1, np.int64) if positions else None
    parts = route(chunk, before, sticky=0, batch_bytes=limit, resume=resume)
    parent = before.queues[0].key
    lasts = (last, -1, last // 2) if positions else (-1, -1, -1)
    stored: set[bytes] = set()
    to_send: list[Part] = []
    for number, part in enumerate(part for part in parts if part.queue == parent):
        if number >= sent:
            inherited = of_waiting(part)
        else:
            rows = values_of(part)
            payload, base, end = encoded(part)
            trimmed = 0
            if number == 0 and 0 < cut < part.count:
                stored |= set(rows[:cut])
                upto = base + cut - 1 if part.positions is None else int(part.positions[cut - 1])
                payload, trimmed, _ = trim(payload, Sequence(upto))
                assert (trimmed, end) == (cut, end)
            inherited = of_encoded(part, payload, trimmed)
        made = divide(inherited, heirs(lasts), number % 3)
        to_send += [each for each in made if each.outcome is None]
        assert sum(each.count for each in made) == part.count
    others = [part for part in parts if part.queue != parent]
    assert chunk.open_parts == len(to_send) + len(others)
    assert not chunk.settled or not (to_send or others)

    lines: dict[QueueKey, list[bytes]] = {}
    for each in to_send:
        lines.setdefault(each.queue, []).extend(values_of(each))
        if each.positions is not None:
            assert [int(v.split(b"|")[0]) * 2 for v in values_of(each)] == each.positions.tolist()
    by_row = {value: row for row, value in enumerate(values)}
    for key, line in lines.items():
        places = [by_row[value] for value in line]
        assert places == sorted(places), "a child keeps the order"
        for row in places:
            check_home(after, key, keys[row], numbers[row] if positions else None)
    sent_values = {value for line in lines.values() for value in line}
    for part in others:
        sent_values |= set(values_of(part))
    skipped = check_outcomes(chunk, values, to_send, others, positions=positions)
    for value in skipped - stored:
        assert positions, "only rows with positions may be stored already"
        assert numbers[by_row[value]] <= max(lasts)
    assert sent_values | skipped == set(values)
    assert not sent_values & skipped


def check_home(route_of: TopicRoute, key: QueueKey, name: bytes | None, number: int | None) -> None:
    if name is None and number is None:
        return
    if name is not None:
        slot = slot_of_key(name)
    else:
        assert number is not None
        slot = int(slots_of_positions(np.array([number]))[0])
    assert route_of.queues[int(route_of.queues_of_slots(np.array([slot]))[0])].key == key


def check_outcomes(
    chunk: Chunk, values: list[bytes], to_send: list[Part], others: list[Part], *, positions: bool
) -> set[bytes]:
    """Handles name the part that holds their row; rows that were not sent are duplicates."""
    here: dict[bytes, tuple[Part, int]] = {}
    for part in [*to_send, *others]:
        for place, value in enumerate(values_of(part)):
            here[value] = part, place
    skipped = set()
    for row, value in enumerate(values):
        found = chunk.outcome_of(row)
        if value in here:
            assert found is None
        else:
            assert found is not None
            assert found[0].duplicate
            skipped.add(value)
    for number, part in enumerate([*to_send, *others]):
        chunk.settle(part, Outcome(base_offset=1_000 * number, base_sequence=0))
    assert chunk.settled
    for row, value in enumerate(values):
        found = chunk.outcome_of(row)
        assert found is not None
        if value in here:
            assert (found[1], found[2]) == here[value]
            metadata = SendFuture(chunk, row).result(0)
            assert metadata.queue == here[value][0].queue.queue_id
            assert not positions or metadata.sequence == 2 * row
    summary = BulkFuture([(chunk, 0, len(values))]).result(0)
    assert (summary.messages, summary.duplicates) == (len(values), len(skipped))
    return skipped


def test_a_mark_goes_to_every_child_that_is_behind_it() -> None:
    chunk = chunk_of([])
    mark = Part(chunk, QueueKey(TopicId(5), QueueId(0)), 0, 0, 0)
    mark.positions = np.array([40])
    chunk.parts, chunk.open_parts = [mark], 1
    made = divide(of_waiting(mark), heirs((50, 39, -1)), 0)
    assert [each.outcome is None for each in made] == [False, True, True]
    assert [each.queue.queue_id for each in made] == [2, 3, 4]
    assert chunk.open_parts == 2
    for each in made[1:]:
        chunk.settle(each, Outcome())
    assert chunk.settled


def test_a_handle_that_looks_in_between_sees_no_wrong_outcome() -> None:
    """Another thread may read the chunk between any two steps of `divide`."""
    chunk = chunk_of([b"%d" % n for n in range(20)], keys=[b"%d" % n for n in range(20)])
    (part,) = route(chunk, topic(1), sticky=0, batch_bytes=1 << 20, resume=None)
    part.queue = QueueKey(TopicId(5), QueueId(0))
    seen: list[Any] = []
    watching: list[bool] = []

    class Watched(Chunk):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if not watching:
                return
            seen.append((name, [self.outcome_of(row) for row in range(20)], self.outcomes(3, 9)))

    watched = Watched("t", 0, 0.0)
    for name in Chunk.__slots__:
        setattr(watched, name, getattr(chunk, name))
    part.chunk = watched
    watching.append(True)
    divide(of_waiting(part), heirs(), 0)
    assert {name for name, _, _ in seen} >= {"order", "parts"}
    assert all(found is None for _, rows, _ in seen for found in rows)
    assert all(found is None for _, _, found in seen)


def test_a_route_after_a_split() -> None:
    before = topic(2)
    after = before.after_split(SPLIT)
    assert [queue.key.queue_id for queue in after.queues] == [1, 2, 3, 4]
    assert [queue.key.queue_id for queue in after.every] == [0, 1, 2, 3, 4]
    assert after.after_split(SPLIT) is after, "known"
    assert before.every is before.queues
    sealed = after.find(0)
    assert sealed is not None
    assert sealed.sealed
    assert after.find(9) is None
    slots = np.array([0, 8_999, 9_000, 32_767, 32_768, 65_535])
    owners = [after.queues[place].key.queue_id for place in after.queues_of_slots(slots)]
    assert owners == [2, 2, 3, 4, 1, 1]
