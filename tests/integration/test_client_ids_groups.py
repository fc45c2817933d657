"""Message ids of a topic with queues on two broker groups: the same id meets the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.client import IdDedup, connect
from semel.protos.errors import InvalidRequest
from tests.kit.cluster import Cluster

COUNT = 400


def test_an_id_is_stored_once_wherever_its_group_is(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "cluster", brokers=1, groups=2) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("t", queues=4, dedup=IdDedup(window_bytes=2 << 20))
        described = client.admin.describe_topic("t")
        assert {queue.group for queue in described.queues} == {1, 2}
        ids = [f"id {number}" for number in range(COUNT)]
        values = [b"%d" % number for number in range(COUNT)]
        with client.producer() as one:
            found = one.send_many("t", values, message_ids=ids).result(30)
            assert (found.stored, found.duplicates) == (COUNT, 0)
            queues = client.admin.describe_topic("t").queues
            assert all(queue.messages > COUNT // 8 for queue in queues)
        with client.producer() as two:
            sent = [
                two.send("t", value, message_id=message_id)
                for value, message_id in zip(values, ids, strict=True)
            ]
            assert all(each.result(30).duplicate for each in sent)
            places = {(each.result().queue, each.result().offset) for each in sent}
            assert len(places) == COUNT
            for number in range(0, COUNT, 20):  # each in a batch of its own
                again = two.send("t", values[number], message_id=ids[number]).result(30)
                assert (again.duplicate, again.queue) == (True, sent[number].result().queue)
            with pytest.raises(InvalidRequest, match="2 broker groups"):
                two.send("t", b"v", key=b"k", message_id="new")
            with pytest.raises(InvalidRequest, match="2 broker groups"):
                two.send("t", b"v", queue=1, message_id="new")
            with pytest.raises(InvalidRequest, match="1 to 128"):
                two.send("t", b"v", message_id="x" * 129)
            with pytest.raises(InvalidRequest, match="row 1"):
                two.send_many("t", [b"v", b"w"], keys=[None, b"k"], message_ids=["a", "b"])
            assert not two.send("t", b"v", key=b"k").result(30).duplicate
        assert sum(queue.messages for queue in client.admin.describe_topic("t").queues) == COUNT + 1


def test_a_large_commit_over_two_groups_drops_what_each_of_them_knows(tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(200_000)]
    known = names[::167]
    with (
        Cluster(tmp_path / "cluster", brokers=1, groups=2) as cluster,
        connect(cluster.bootstrap) as client,
    ):
        client.admin.create_topic("t", queues=4, dedup=IdDedup(window_bytes=64 << 20))
        with client.producer() as producer:
            producer.send_many("t", known, message_ids=known).result(30)
            for dropped in (len(known), len(names)):
                with producer.transaction("load") as t:
                    t.send_many("t", names, message_ids=names)
                    committed = t.commit()
                assert (committed.duplicates, committed.conflicts) == (dropped, 0)
        assert sum(queue.messages for queue in client.admin.describe_topic("t").queues) == 200_000
        verified = client.admin.verify("t")
        assert verified.ok
        assert verified.id_duplicates == 0
