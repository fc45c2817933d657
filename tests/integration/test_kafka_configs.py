"""Settings of topics, and the cluster, as two of Kafka's admin clients change and describe them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from kafka import KafkaAdminClient  # type: ignore[import-untyped]
from kafka.admin import ConfigResource as PlainResource  # type: ignore[import-untyped]
from kafka.admin import ConfigResourceType

from semel.client import Client
from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess, produce


@pytest.fixture(scope="module")
def address(shared_cluster: Cluster) -> Iterator[str]:
    with KafkaGatewayProcess(shared_cluster.bootstrap) as running:
        yield running.address


def values_of(admin: AdminClient, topic: str) -> dict[str, str | None]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource])[resource].result(30)
    assert not any(entry.is_read_only for entry in found.values())
    return {name: entry.value for name, entry in found.items()}


def alter(admin: AdminClient, topic: str, *entries: Any) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
    admin.incremental_alter_configs([resource])[resource].result(30)


def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_librdkafka_changes_settings_one_by_one(address: str, client: Client) -> None:
    topic = "settings"
    client.admin.create_topic(topic, queues=1)
    admin = AdminClient({"bootstrap.servers": address})
    assert values_of(admin, topic)["cleanup.policy"] == "delete"
    alter(
        admin,
        topic,
        entry("retention.ms", "60000", AlterConfigOpType.SET),
        entry("retention.bytes", "1048576", AlterConfigOpType.SET),
        entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    described = client.admin.describe_topic(topic).settings
    assert (described.retention_ms, described.retention_bytes) == (60_000, 1 << 20)
    assert described.compaction is not None
    assert values_of(admin, topic)["cleanup.policy"] == "compact,delete"
    alter(
        admin,
        topic,
        entry("retention.ms", None, AlterConfigOpType.DELETE),
        entry("cleanup.policy", "delete", AlterConfigOpType.SET),
    )
    described = client.admin.describe_topic(topic).settings
    assert (described.retention_ms, described.compaction) == (7 * 86_400_000, None)
    for name, value in (("retention.ms", "soon"), ("min.insync.replicas", "2")):
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            alter(admin, topic, entry(name, value, AlterConfigOpType.SET))
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        alter(admin, "missing", entry("retention.ms", "1", AlterConfigOpType.SET))


def test_librdkafka_replaces_all_settings(address: str, client: Client) -> None:
    topic = "replaced"
    client.admin.create_topic(topic, queues=1, retention_ms=60_000, retention_bytes=1 << 20)
    admin = AdminClient({"bootstrap.servers": address})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "1000"})
    deprecated = "alter_configs has been deprecated"
    with pytest.warns(DeprecationWarning, match=deprecated):
        only_checked = admin.alter_configs([resource], validate_only=True)[resource]
    only_checked.result(30)
    assert client.admin.describe_topic(topic).settings.retention_ms == 60_000
    with pytest.warns(DeprecationWarning, match=deprecated):
        done = admin.alter_configs([resource])[resource]
    done.result(30)
    described = client.admin.describe_topic(topic).settings
    assert described.message_bytes_max == 1_000
    assert (described.retention_ms, described.retention_bytes) == (7 * 86_400_000, -1)


def test_kafka_python_changes_settings_and_describes_the_cluster(
    address: str, client: Client
) -> None:
    topic = "plain-settings"
    client.admin.create_topic(topic, queues=1)
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.alter_configs(
            [PlainResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "60000"})]
        )
        assert client.admin.describe_topic(topic).settings.retention_ms == 60_000
        cluster = admin.describe_cluster()
        (broker,) = cluster["brokers"]
        assert f"{broker['host']}:{broker['port']}" == address
        assert cluster["cluster_id"]
        assert cluster["controller_id"] == broker["broker_id"]
    finally:
        admin.close()


def test_librdkafka_describes_the_cluster(address: str, client: Client) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.describe_cluster(request_timeout=30).result(30)
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [address]
    assert found.cluster_id == client.admin.cluster_status().cluster_id


def test_records_are_deleted_up_to_an_offset(address: str, client: Client) -> None:
    topic = "deleted"
    client.admin.create_topic(topic, queues=2)
    produce(address, topic, [b"%d" % number for number in range(100)], keys=[b"k"] * 100)
    admin = AdminClient({"bootstrap.servers": address})
    ends = {
        queue.queue: queue.log_end_offset for queue in client.admin.describe_topic(topic).queues
    }
    (partition,) = (queue for queue, end in ends.items() if end)

    def delete(offset: int) -> int:
        place = TopicPartition(topic, partition, offset)
        (found,) = admin.delete_records([place]).values()
        return int(found.result(30).low_watermark)

    def start() -> int:
        return client.admin.describe_topic(topic).queues[partition].log_start_offset

    assert (delete(40), start()) == (40, 40)
    assert (delete(30), start()) == (40, 40), "nothing comes back"
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        delete(101)
    client.admin.split_queue(topic, partition)
    assert delete(60) == 60
    assert (delete(-1), start()) == (100, 100)
