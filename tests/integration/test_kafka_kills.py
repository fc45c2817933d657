"""Masters and gateways are killed under an idempotent producer: nothing lost, nothing twice."""

from __future__ import annotations

from semel.client import connect
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume, produce

RECORDS = 2_000


def check(cluster: Cluster, addresses: str, topic: str, values: list[bytes]) -> None:
    """Lost 0, twice 0, order kept, and the cluster's own proof."""
    found = consume(addresses, topic, 1, len(values))
    assert [message.value() for message in found] == values
    cluster.start()
    with connect(cluster.bootstrap) as client:
        (queue,) = client.admin.describe_topic(topic).queues
        assert queue.log_end_offset == len(values)
        assert client.admin.verify(topic).ok


def test_an_idempotent_producer_survives_the_master_and_both_gateways(cluster: Cluster) -> None:
    with connect(cluster.bootstrap) as client:
        client.admin.create_topic("orders", queues=1)
    one, two = KafkaGatewayProcess(cluster.bootstrap), KafkaGatewayProcess(cluster.bootstrap)
    with one, two:
        addresses = f"{one.address},{two.address}"
        values = [b"%06d" % number for number in range(RECORDS)]

        def kill(number: int) -> None:
            if number == RECORDS // 4:
                cluster.kill(cluster.master())
            elif number == RECORDS // 2:
                one.kill()
            elif number == RECORDS * 5 // 8:
                one.start()
            elif number == RECORDS * 3 // 4:
                two.kill()
            elif number == RECORDS * 7 // 8:
                two.start()

        stored = produce(
            addresses,
            "orders",
            values,
            between=kill,
            settings={"batch.num.messages": 7, "linger.ms": 0, "reconnect.backoff.max.ms": 200},
        )
        assert [place.offset for place in stored] == list(range(RECORDS))
        check(cluster, addresses, "orders", values)
