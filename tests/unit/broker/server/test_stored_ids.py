"""Messages that are stored twice under one id are found in the log, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from semel.broker.server.stored_ids import StoredIds
from semel.broker.state import batch_record_parts
from semel.protos.frames import RecordKind, build_frame, decode_frame_header, iter_records
from semel.protos.ids import Offset, Term
from semel.protos.queue_refs import queue_ref
from semel.protos.staging import STAGER_ID_MIN
from semel.protos.v1 import control_pb2, transaction_records_pb2
from tests.kit.id_group import OTHER, IdGroup
from tests.kit.state_log import KEY, control

VERIFIER_SEED = bytes(range(16))
GONE = 99
"""In place of an entry that is cleaned away."""


def read(frames: Iterable[bytes], begin: int = 0) -> tuple[dict[Any, int], list[str]]:
    frames = list(frames)
    places = {int(decode_frame_header(frame).index): frame for frame in frames}

    def record(entry: int, position: int, length: int) -> bytes | None:
        if entry == GONE:
            return None
        found = [bytes(data) for at, _, data in iter_records(places[entry]) if at == position]
        assert len(found[0]) == length
        return found[0]

    found = StoredIds({KEY.topic_id: begin}, VERIFIER_SEED, record)
    for frame in frames:
        found.feed(frame)
    return found.finish(), found.problems


def entry(group: IdGroup, **record: Any) -> bytes:
    """The next entry, with one control record."""
    return build_frame(len(group.frames) + 1, 1, group.now_us, [control(**record)])[0]


def planted(
    group: IdGroup,
    given: list[bytes | None],
    arrival: int,
    *,
    ids: int | None = None,
    **options: Any,
) -> bytes:
    """The next entry, with messages that a master should have dropped."""
    data = group.batch([(each, b"v") for each in given], **options)
    key = options.get("key", KEY)
    record = control_pb2.CheckIds(
        queue=queue_ref(key),
        producer_id=1,
        count=len(given),
        first_arrival=arrival,
        ids=sum(each is not None for each in given) if ids is None else ids,
    )
    parts = batch_record_parts(data, base_offset=Offset(0), append_time_us=1, term=Term(1))
    records: list[Any] = [control(check_ids=record), (RecordKind.BATCH, parts)]
    return build_frame(len(group.frames) + 1, 1, group.now_us, records)[0]


def test_a_log_in_which_ids_were_dropped_has_no_duplicates() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (None, b"2"), (b"b", b"2")])
    group.produce_ids([(b"b", b"2"), (b"c", b"3"), (b"a", b"x"), (b"c", b"3")], producer=2)
    group.produce_ids([(b"a", b"1"), (b"d", b"4")], key=OTHER)
    for start in range(len(group.frames)):
        assert read(group.frames[start:]) == ({}, [])


def test_planted_duplicates_are_found_in_their_queue() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    again = planted(group, [b"c", None, b"a", b"c"], 2)
    assert read([*group.frames, again]) == ({KEY: 2}, [])
    elsewhere = planted(group, [b"b"], 2, key=OTHER)
    assert read([*group.frames, elsewhere]) == ({OTHER: 1}, [])
    assert read([elsewhere]) == ({}, []), "its first message lies before the log that is left"


def test_an_id_behind_the_window_is_a_new_message() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    record = control_pb2.EvictIds(topic_id=KEY.topic_id, first_arrival=2)
    evicted = entry(group, evict_ids=record)
    assert read([*group.frames, evicted, planted(group, [b"a", b"b"], 3)]) == ({}, [])
    assert read([*group.frames, evicted, planted(group, [b"c"], 3)]) == ({KEY: 1}, [])


def test_where_the_window_began_is_not_guessed() -> None:
    """The log that is left does not tell: only what is in today's window counts."""
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    frames = [*group.frames, planted(group, [b"a", b"b"], 2)]
    assert read(frames, begin=1) == ({KEY: 1}, [])
    assert read(frames, begin=2) == ({}, [])


def test_comparing_that_begins_anew_knows_nothing() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    record = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings={})
    ended = entry(group, alter_topic=record)
    assert read([*group.frames, ended, planted(group, [b"a"], 0)]) == ({}, [])


def test_the_id_of_a_cancelled_message_is_free_from_then_on() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    cancel = control_pb2.CancelDelayed(queue=queue_ref(KEY), arrival=0)
    cancelled = entry(group, cancel_delayed=cancel)
    again = planted(group, [b"a"], 2)
    assert read([*group.frames, cancelled, again]) == ({}, [])
    assert read([*group.frames, again, cancelled]) == ({KEY: 1}, [])
    both = planted(group, [b"a", b"a", b"b"], 2)
    assert read([*group.frames, cancelled, both]) == ({KEY: 2}, [])


def test_a_window_that_begins_again_knows_nothing() -> None:
    """All queues of the topic had moved away, and one came back."""
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    assert read([*group.frames, planted(group, [b"a"], 0)]) == ({}, [])
    assert read([*group.frames, planted(group, [b"a", b"a"], 0)]) == ({KEY: 1}, [])
    assert read([*group.frames, planted(group, [b"a"], 1 << 30)]) == ({}, [])
    assert read([*group.frames, planted(group, [b"a", b"a"], 1 << 30)]) == ({KEY: 1}, [])


def test_a_window_goes_on_behind_ids_that_moved_here() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1"), (b"b", b"2")])
    step = control_pb2.MoveQueue(
        queue=queue_ref(OTHER),
        step=control_pb2.MOVE_STEP_IDS,
        ids=bytes(3 * 40),
        first_arrival=2,
    )
    moved = entry(group, move_queue=step)
    assert read([*group.frames, moved, planted(group, [b"a", b"c"], 5)]) == ({KEY: 1}, [])


def transaction(group: IdGroup, *, gone: bool = False, here: bool = True) -> list[bytes]:
    """Two entries: one batch is staged, and published together with one in front of the record,
    which is left out unless `here`. The first one is not readable any more if it is `gone`."""

    def staged(ids: list[bytes | None]) -> Any:
        data = group.batch([(each, b"v") for each in ids], producer=STAGER_ID_MIN)
        return RecordKind.STAGED, batch_record_parts(
            data, base_offset=Offset(-1), append_time_us=1, term=Term(1)
        )

    index = len(group.frames) + 1
    first, positions = build_frame(index, 1, group.now_us, [staged([b"a", None, b"c"])])
    payload = staged([b"a", b"c", b"d"])
    check = control_pb2.CheckIds(queue=queue_ref(KEY), producer_id=STAGER_ID_MIN, count=3)
    publish = transaction_records_pb2.PublishTransaction(
        ids=[
            transaction_records_pb2.PublishedIds(
                topic_id=KEY.topic_id,
                first_arrival=1,
                ids=[2, 3],
                entries=[GONE if gone else index, 0],
                positions=[positions[0], 0],
                lengths=[len(next(iter_records(first))[2]), 0],
            )
        ]
    )
    record = transaction_records_pb2.TransactionRecord(publish=publish)
    front = [control(check_ids=check), payload] if here else []
    second = build_frame(index + 1, 1, group.now_us, [*front, control(transaction=record)])[0]
    return [first, second]


def test_what_a_transaction_publishes_counts_wherever_it_lies() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    frames = [*group.frames, *transaction(group)]
    assert read(frames) == ({KEY: 3}, [])
    group.frames = frames
    later = [*frames, planted(group, [b"e", b"d"], 6)]
    assert read(later) == ({KEY: 4}, [])
    assert read(later, begin=2) == ({KEY: 2}, []), "the window begins behind the first two"


def test_what_is_rewritten_counts_only_when_it_is_published() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    staged, _ = transaction(group)
    step = transaction_records_pb2.TransactionRecord(
        rewrite=transaction_records_pb2.RewriteBatches(transaction_id="t", attempt=1)
    )
    rewritten = build_frame(
        len(group.frames) + 1,
        1,
        group.now_us,
        [
            control(check_ids=control_pb2.CheckIds(queue=queue_ref(KEY), count=3)),
            *[(kind, [payload]) for _, kind, payload in iter_records(staged)],
            control(transaction=step),
        ],
    )[0]
    assert read([*group.frames, rewritten]) == ({}, [])


def test_published_batches_that_were_trimmed_are_passed_over() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    group.frames += transaction(group, gone=True)
    assert read(group.frames) == ({KEY: 1}, [])
    assert read([*group.frames, planted(group, [b"d"], 6)]) == ({KEY: 2}, [])


def test_a_publication_without_a_batch_of_its_own_is_a_problem() -> None:
    group = IdGroup()
    found, problems = read([*group.frames, *transaction(group, here=False)])
    assert found == {}
    assert problems == [f"entry {len(group.frames) + 2}: a published batch is not there"]


def test_a_decision_about_another_number_of_ids_is_a_problem() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    found, problems = read([*group.frames, planted(group, [b"b", None], 1, ids=2)])
    assert found == {}
    assert "1 messages with ids are stored, the decision says 2" in problems[0]


@given(st.lists(st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=4), max_size=6))
def test_as_many_are_found_as_a_plain_count_says(batches: list[list[bytes | None]]) -> None:
    group = IdGroup()
    frames, arrival, twice = list(group.frames), 0, 0
    seen: set[bytes | None] = set()
    for ids in batches:
        if not ids:
            continue
        frames.append(planted(group, ids, arrival))
        for each in ids:
            twice += each in seen
            seen |= {each} - {None}
        arrival += sum(each is not None for each in ids)
    assert read(frames) == ({KEY: twice} if twice else {}, [])


def test_a_topic_that_is_not_asked_for_is_not_read() -> None:
    group = IdGroup()
    group.produce_ids([(b"a", b"1")])
    found = StoredIds({99: 0}, VERIFIER_SEED, lambda *_: None)
    for frame in [*group.frames, planted(group, [b"a"], 1)]:
        found.feed(frame)
    assert found.finish() == {}
