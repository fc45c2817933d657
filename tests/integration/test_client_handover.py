"""How queues go from one member of a consumer group to another, and what a restart keeps."""

from __future__ import annotations

import pytest

from semel.client import Client
from semel.protos.errors import LockLost, MemberFenced
from tests.kit.consuming import fill, take, values_of
from tests.kit.waiting import until


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    client.admin.create_topic(name, queues=4)
    return name


def test_a_restarted_static_member_goes_on_with_its_queues(client: Client, topic: str) -> None:

    with client.consumer("static", topic, member_id="b") as other:
        one = client.consumer("static", topic, member_id="a", grace_ms=60_000)
        until(lambda: len(one.assignment()) == 2 and len(other.assignment()) == 2)
        before = one.assignment()
        others = other.assignment()
        one.close()
        with client.consumer("static", topic, member_id="a", grace_ms=60_000) as again:
            until(lambda: len(again.assignment()) == 2)
            assert again.assignment() == before
            assert other.assignment() == others


def test_a_second_process_under_one_id_ends_the_first(client: Client, topic: str) -> None:
    fill(client, topic, 40)
    first = client.consumer("twin", topic, member_id="a")
    delivered = take(first, 40)
    with client.consumer("twin", topic, member_id="a") as second:
        assert values_of(take(second, 40)) == values_of(delivered)
        second.commit()
        with pytest.raises(MemberFenced, match="its own member_id"):
            take(first, 1)
        with pytest.raises(MemberFenced):
            first.poll(timeout=0)
        with pytest.raises(MemberFenced):
            first.commit()
        first.close()
        fill(client, topic, 4, first=40)
        assert len(take(second, 4)) == 4
    assert client.admin.describe_group("twin").lag == 4


def test_a_group_that_begins_at_the_end_skips_nothing_in_its_first_hand_over(
    client: Client, topic: str
) -> None:
    fill(client, topic, 20)
    first = client.consumer("tail", topic, auto_offset_reset="latest")
    until(lambda: len(first.assignment()) == 4)
    until(lambda: all(q.committed_offset == 5 for q in client.admin.describe_group("tail").queues))
    values = fill(client, topic, 20, first=20)
    assert values_of(take(first, 20)) == values
    first.close()
    with client.consumer("tail", topic, auto_offset_reset="latest") as second:
        assert values_of(take(second, 20)) == values


def test_the_new_owner_begins_at_the_commit_and_the_slow_one_is_told(
    client: Client, topic: str
) -> None:
    """The old member commits a part, then holds on to the rest for longer than it is waited for."""
    values = fill(client, topic, 40)
    with client.consumer("slow", topic) as slow:
        delivered = take(slow, 40)
        for queue in range(4):
            slow.commit(next(m for m in delivered if m.queue == queue and m.offset == 4))
        with client.consumer("slow", topic) as new:
            until(lambda: len(new.assignment()) == 2)
            moved = {queue for _, queue in new.assignment()}
            again = take(new, 10)
            assert {(m.queue, m.offset) for m in again} == {
                (queue, offset) for queue in moved for offset in range(5, 10)
            }
            with pytest.raises(LockLost):
                slow.commit()
            with pytest.raises(LockLost):
                slow.commit(next(m for m in delivered if m.queue in moved and m.offset == 9))
            new.commit()
        assert len(values) == 40
    states = client.admin.describe_group("slow").queues
    assert {state.committed_offset for state in states} == {10}
