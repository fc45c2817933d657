"""librdkafka, which has codecs of its own, reads what the gateway has compressed."""

from __future__ import annotations

import pytest

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, consume


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_is_compressed_for_it(
    shared_cluster: Cluster, client: Client, codec: str
) -> None:
    topic = f"packed-{codec}"
    client.admin.create_topic(topic, queues=1)
    values = [b"%d-" % number + b"x" * 200 for number in range(500)]
    with client.producer() as producer:
        producer.send_many(topic, values, keys=[b"k%d" % number for number in range(500)]).result(
            30
        )
        producer.send(topic, b"last", headers={"h": b"x"}, message_id=b"id").result(30)
    with KafkaGatewayProcess(shared_cluster.bootstrap, "--compression", codec) as gateway:
        found = consume(gateway.address, topic, 1, 501)
    assert [message.value() for message in found] == [*values, b"last"]
    assert [message.offset() for message in found] == list(range(501))
    assert found[-1].headers() == [("h", b"x"), ("semel-message-id", b"id")]
