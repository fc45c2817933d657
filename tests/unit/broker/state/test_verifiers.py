"""The verifiers agree with a sound log, and name every planted fault."""

from __future__ import annotations

import pytest

from semel.broker.state import BatchVerifier, QueueReport, State, TableVerifier
from semel.broker.state.apply.expired import Expired
from semel.protos.errors import CorruptSegment, InvalidRequest
from semel.protos.frames import iter_records
from semel.protos.v1 import control_pb2
from tests.kit.state_log import KEY, Group, batch_record, control, header, ref
from tests.unit.broker.state.moving import Home, begin, bring_slice, move

Extents = list[tuple[int, int, bytes]]


@pytest.fixture
def group() -> Group:
    made = Group()
    made.fence()
    made.fence(producer=2)
    for at in range(0, 30, 10):
        made.produce(header(at - 1, last=at + 9))
    made.produce(header(-1, base=5, last=50, count=3, producer=2))
    made.produce(header(50, base=51, last=90, count=0, producer=2))
    made.produce(header(90, base=95, last=97, count=3, producer=2))
    return made


def stored(group: Group) -> Extents:
    queue = group.state.queues[KEY]
    found: Extents = []
    for extent in queue.extents_from(queue.log_start_offset, 1 << 40):
        records = {at: bytes(data) for at, _, data in iter_records(group.frames[extent.index - 1])}
        data = records[extent.position]
        assert len(data) == extent.length
        found.append((extent.base_offset, extent.count, data))
    return found


def expired(epoch: int) -> Expired:
    """What a queue remembers when producer 1 expired with `epoch`."""
    made = Expired()
    made.add(1, epoch, stored=True)
    return made


def verify(
    extents: Extents, start: int = 0, end: int = 36, floor: Expired | None = None
) -> QueueReport:
    verifier = BatchVerifier(KEY, start, end, expired=floor)
    for extent in extents:
        verifier.feed(*extent)
    return verifier.finish()


def test_sound_queue(group: Group) -> None:
    report = verify(stored(group))
    assert report.ok, report.problems
    assert (report.messages, report.duplicates, report.missing) == (36, 0, 0)
    assert report.digest == verify(stored(group)).digest


def test_trimmed_queue(group: Group) -> None:
    group.apply(control(trim=control_pb2.Trim(queue=ref(), log_start_offset=15)))
    report = verify(stored(group), start=15)
    assert report.ok, report.problems
    assert report.messages == 21


def test_empty_queue() -> None:
    assert verify([], 5, 5).ok


def test_lost_batch(group: Group) -> None:
    extents = stored(group)
    del extents[1]
    report = verify(extents)
    assert report.missing == 20  # ten offsets, and ten sequences of the chain
    assert verify(stored(group)[:-1]).missing == 3


def test_batch_stored_twice(group: Group) -> None:
    first = header(-1, last=9)
    data = b"".join(bytes(part) for part in batch_record(first, 36, 0, 1)[1])
    report = verify([*stored(group), (36, 10, data)], end=46)
    assert (report.duplicates, report.missing) == (10, 0)


def test_damaged_byte(group: Group) -> None:
    extents = stored(group)
    offset, count, data = extents[1]
    for at in (0, 40, len(data) - 1):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        report = verify([extents[0], (offset, count, damaged), *extents[2:]])
        assert report.missing >= 10
        assert not report.ok


def test_wrong_place_and_queue(group: Group) -> None:
    extents = stored(group)
    swapped = [(0, 10, extents[1][2]), (10, 10, extents[0][2]), *extents[2:]]
    assert not verify(swapped).ok
    verifier = BatchVerifier(KEY._replace(queue_id=KEY.queue_id + 1), 0, 36)  # type: ignore[arg-type]
    for extent in extents:
        verifier.feed(*extent)
    assert not verifier.finish().ok


def test_write_of_a_fenced_incarnation(group: Group) -> None:
    late = header(29, epoch=0)
    data = b"".join(bytes(part) for part in batch_record(late, 36, 0, 1)[1])
    assert not verify([*stored(group), (36, 1, data)], end=37).ok


def test_restart_after_expiry_is_no_duplicate(group: Group) -> None:
    again = header(-1, last=9, epoch=2)
    data = b"".join(bytes(part) for part in batch_record(again, 36, 0, 1)[1])
    assert verify([*stored(group), (36, 10, data)], end=46, floor=expired(1)).ok
    assert verify([*stored(group), (36, 10, data)], end=46).duplicates == 10


def test_queue_remembers_the_expiry_that_explains_a_restart(group: Group) -> None:
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
    assert record is not None
    group.entry.append(control(expire_producers=record))
    group.commit()
    group.fence(epoch=2, after_expiry=True)
    group.produce(header(-1, last=9, epoch=2))
    floor = group.state.queues[KEY].expired
    assert verify(stored(group), end=46, floor=floor).ok


@pytest.mark.parametrize("wrote", [False, True])
def test_new_row_need_not_remember_what_an_expired_one_stored(group: Group, wrote: bool) -> None:
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=0, rows_max=0)
    assert record is not None
    group.entry.append(control(expire_producers=record))
    group.commit()
    group.fence(epoch=2, after_expiry=True)
    if wrote:
        group.produce(header(-1, last=9, epoch=2))
    tables = TableVerifier()
    for frame in group.frames:
        tables.feed(frame)
    end = group.state.queues[KEY].log_end_offset
    for windows, sound in ((tables.windows(KEY), True), ({1: []}, not wrote)):
        verifier = BatchVerifier(KEY, 0, end, expired=group.state.queues[KEY].expired)
        for extent in stored(group):
            verifier.feed(*extent)
        verifier.hold_against(windows)
        report = verifier.finish()
        assert report.ok == sound, report.problems


@pytest.mark.parametrize("begin", [0, 3, 6])
def test_table_is_rebuilt_from_any_state(group: Group, begin: int) -> None:
    state = State()
    for frame in group.frames[:begin]:
        state.apply_frame(frame)
    verifier = TableVerifier(state if begin else None)
    for frame in group.frames[begin:]:
        verifier.feed(frame)
    assert not verifier.problems
    assert verifier.index == group.state.applied_index
    assert verifier.log_end_offset(KEY) == 36
    assert verifier.queue_digest(KEY) == group.state.producers.queue_digest(KEY)


def test_table_with_expiry_and_full_window(group: Group) -> None:
    for sequence in range(30, 120):
        group.produce(header(sequence - 1))
    record = group.admission.propose_expiry(KEY, now_us=group.now_us, idle_ms=10, rows_max=1)
    assert record is not None
    group.entry.append(control(expire_producers=record))
    group.commit()
    group.fence(producer=1, epoch=9)
    verifier = TableVerifier()
    for frame in group.frames:
        verifier.feed(frame)
    assert not verifier.problems
    assert verifier.queue_digest(KEY) == group.state.producers.queue_digest(KEY)


def test_table_differs_when_a_row_was_tampered_with(group: Group) -> None:
    verifier = TableVerifier()
    for frame in group.frames:
        verifier.feed(frame)
    row = group.state.producers.change(KEY, 1)
    assert row is not None
    row.append(30, 39, 30, 10, 1, group.now_us)
    assert verifier.queue_digest(KEY) != group.state.producers.queue_digest(KEY)


@pytest.mark.parametrize(
    ("head", "offset"),
    [
        (header(39), 36),
        (header(19, last=29), 36),
        (header(29, epoch=2), 36),
        (header(29, producer=7), 36),
        (header(29), 37),
    ],
)
def test_table_names_broken_chains(group: Group, head: object, offset: int) -> None:
    verifier = TableVerifier(group.state)
    other = Group()
    other.frames = list(group.frames)
    other.state = group.replayed()
    with pytest.raises(Exception, match="does not"):
        other.apply(batch_record(head, offset, other.now_us, 1))  # type: ignore[arg-type]
    verifier.feed(other.frames[-1])
    assert len(verifier.problems) == 1


def test_table_needs_every_entry(group: Group) -> None:
    verifier = TableVerifier()
    with pytest.raises(CorruptSegment, match="came after"):
        verifier.feed(group.frames[1])


# --- steps of moves that apply refuses ---------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "job"),
    [("FORWARD", 1), ("SEAL", 1), ("SEAL", 3), ("UNSEAL", 1), ("ABORT", 3), ("BEGIN", 3)],
)
def test_a_stray_step_at_a_sealed_queue_is_no_alarm(step: str, job: int) -> None:
    """The way back of a queue, and in the middle of it a step of another job."""
    left, right = Home(1, queues=(KEY,)), Home(2)
    left.fence()
    left.produce(header(-1, last=2))
    move(left, right, 1)
    assert begin(right, left, 2) is None
    assert right.step("SEAL", 2, 1) is None
    assert bring_slice(right, left, 2) is None
    create = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
    right.step(step, job, 1, create=create)
    assert left.step("ACTIVATE", 2, 2) is None
    assert right.step("FORWARD", 2, 1) is None
    check_tables(left, right)


@pytest.mark.parametrize(
    ("step", "job"), [("ABORT", 1), ("PART", 2), ("INGEST", 2), ("BEGIN", 1), ("BEGIN", 2)]
)
def test_a_stray_step_at_a_queue_that_is_here_whole_is_no_alarm(step: str, job: int) -> None:
    left, right = Home(1, queues=(KEY,)), Home(2)
    left.fence()
    left.produce(header(-1, last=2))
    assert begin(left, right, 2) is None
    assert left.step("SEAL", 2, 2) is None
    assert bring_slice(left, right, 2) is None
    size = len(right.state.moves.incoming[KEY].slice)
    create = control_pb2.CreateQueue(queue=ref(), topic="orders", slot_end=65_536)
    right.step(step, job, 1, create=create, offset=size, part=b"more", digest=b"another")
    assert right.step("ACTIVATE", 2, 1) is None
    assert left.step("FORWARD", 2, 2) is None
    check_tables(left, right)


def test_an_abort_of_a_later_job_ends_what_comes() -> None:
    left, right = Home(1, queues=(KEY,)), Home(2)
    assert begin(left, right, 1) is None
    assert left.step("SEAL", 1, 2) is None
    assert bring_slice(left, right, 1) is None
    assert right.step("ABORT", 2, 1) is None
    assert isinstance(right.step("ACTIVATE", 1, 1), InvalidRequest)
    check_tables(left, right)


def check_tables(*groups: Home) -> None:
    for group in groups:
        assert not group.tables.problems
        queue = group.state.queues.get(KEY)
        assert group.tables.log_end_offset(KEY) == (0 if queue is None else queue.log_end_offset)
        assert group.tables.queue_digest(KEY) == group.state.producers.queue_digest(KEY)
