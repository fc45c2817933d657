"""A batch that is stored is answered as the duplicate it is, whatever limit has changed since."""

from __future__ import annotations

from semel.broker.replica.proposer import Proposer
from semel.broker.state import Accepted, Duplicate, Refused
from semel.protos.delays import AHEAD_MAX_US
from semel.protos.errors import DiskFull, InvalidRequest, MessageTooLarge, Throttled
from semel.protos.ids import Offset
from semel.protos.v1 import common_pb2, control_pb2
from tests.kit.state_log import KEY, Group, control, header
from tests.unit.broker.replica.one_node import Answers
from tests.unit.broker.state.delaying import SECOND_US, delaying_group, late
from tests.unit.broker.state.staging import A, Stage, staged


def lower_limit(group: Group, limit: int) -> None:
    """The largest batch of the topic is smaller from now on."""
    settings = common_pb2.TopicSettings(batch_bytes_max=limit)
    group.apply(
        control(alter_topic=control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings))
    )


def test_a_staged_batch_is_found_below_a_lower_size_limit() -> None:
    group = Stage()
    group.open()
    large = staged(A, 0, 100)
    assert group.stage(large) == "staged"
    lower_limit(group, large.batch_length - 1)
    assert group.stage(large) == "duplicate"
    assert isinstance(group.stage(staged(A, 100, 100)), MessageTooLarge)
    assert isinstance(group.stage(staged(A, 900, 100)), MessageTooLarge), "whatever its place"
    assert group.stage(staged(A, 100, 1)) == "staged"


def test_a_staged_batch_is_found_while_a_move_has_sealed_the_queue() -> None:
    group = Stage()
    group.open()
    assert group.stage(staged(A, 0)) == "staged"
    seal = control_pb2.MoveQueue(
        queue=common_pb2.QueueRef(topic_id=KEY.topic_id, queue_id=KEY.queue_id),
        job=1,
        group_id=2,
        step=control_pb2.MOVE_STEP_SEAL,
    )
    assert isinstance(group.admission.queues.admit_move(seal), Accepted)
    group.entry.append(control(move_queue=seal))
    group.commit()
    assert group.stage(staged(A, 0)) == "duplicate"
    assert isinstance(group.stage(staged(A, 1)), Throttled)


def test_a_staged_batch_is_found_by_a_master_whose_clock_is_behind() -> None:
    group = Stage()
    group.open()
    far = late(-1, AHEAD_MAX_US / SECOND_US, producer=A, session=1)
    assert group.stage(far) == "staged"
    group.now_us -= SECOND_US
    assert group.stage(far) == "duplicate"
    next_one = late(0, AHEAD_MAX_US / SECOND_US, producer=A, session=1)
    assert isinstance(group.stage(next_one), InvalidRequest)


def test_a_delayed_batch_is_found_whatever_its_limits_are_now() -> None:
    """Its size, and how far ahead its time is by the clock of the group that the queue is on."""
    group = delaying_group()
    far = late(-1, AHEAD_MAX_US / SECOND_US, last=99)
    assert isinstance(group.produce(far, commit=False), Accepted)
    group.commit()
    lower_limit(group, far.batch_length - 1)
    assert group.produce(far) == Duplicate(Offset(-1))
    lower_limit(group, 1 << 20)
    group.now_us -= SECOND_US
    assert group.produce(far) == Duplicate(Offset(-1))
    for previous in (99, 500):  # in order, and ahead of its predecessor
        refused = group.produce(late(previous, AHEAD_MAX_US / SECOND_US))
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, InvalidRequest)


def test_what_is_stored_is_found_while_the_disk_is_full() -> None:
    """Nothing has to be written for a duplicate, and "nothing was stored" would be untrue."""
    group = Stage()
    group.fence()
    group.open()
    group.produce(header(-1, last=4))
    assert group.stage(staged(A, 0)) == "staged"
    answers = Answers()
    proposer = Proposer(group.admission)
    for head in (
        header(-1, last=4),
        header(4),
        header(-1, last=4, epoch=2),
        header(-1, producer=2),
        staged(A, 0),
        staged(A, 1),
    ):
        proposer.submit_batch(head, head.encode() + bytes(head.body_length), answers)
    proposer.refuse_pending(DiskFull("no room"))
    assert answers.acks == [("duplicate", 0), ("duplicate", -1)]
    assert [type(error) for error in answers.refused] == [DiskFull] * 4
    assert not proposer.has_pending
    assert proposer.pending_bytes == 0
