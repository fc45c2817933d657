"""`semel up --secure --authorization --kafka`: librdkafka over TLS, with rights."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from semel.client import connect
from semel.console.up_kafka import OWN_RULES
from semel.protos.security.credentials import Security
from tests.kit.kafka_gateway import consume, produce
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until

GATEWAY = "user:kafka-gateway"


def settings_in(path: str) -> dict[str, str]:
    """The settings in a file of librdkafka."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines)


def topics_seen(settings: dict[str, str]) -> set[str]:
    """The topics of which a client is told."""
    return set(Producer(settings).list_topics(timeout=10.0).topics)


def test_kafkas_clients_of_a_secure_cluster_have_the_rights_of_its_gateway(tmp_path: Path) -> None:
    options = ("--secure", "--authorization", "--brokers", "1", "--kafka", "0")
    with UpProcess(tmp_path / "up", *options) as up:
        ready = next(event for event in up.events if event["event"] == "ready")
        settings = settings_in(ready["kafka_config"])
        assert settings["bootstrap.servers"] == ready["kafka"]
        admin_files = Path(ready["admin_config"]).parent
        with connect(
            up.bootstrap, security=Security.read(admin_files), keep_routes=False
        ) as client:
            client.admin.create_topic("orders", queues=1)
            client.admin.create_topic("secret", queues=1)
            assert set(client.admin.access_rules().rules) == set(OWN_RULES), "and no more"
            assert not {"orders", "secret"} & topics_seen(settings)
            rules = [f"allow {GATEWAY} {action} topic:orders" for action in ("read", "write")]
            rules.append(f"allow {GATEWAY} commit consumer-group:none")
            client.admin.change_access_rules(add=rules)
            until(lambda: "orders" in topics_seen(settings), 20, "the topic to be seen")
            assert "secret" not in topics_seen(settings)
            values = [b"%d" % number for number in range(100)]
            stored = produce(ready["kafka"], "orders", values, settings=settings)
            assert [place.offset for place in stored] == list(range(100))
            found = consume(ready["kafka"], "orders", 1, 100, settings=settings)
            assert [message.value() for message in found] == values
            with client.reader("orders", end="latest") as reader:
                assert [message.value for message in reader] == values
        for left_out in ("ssl.certificate.location", "security.protocol"):
            fewer = {name: text for name, text in settings.items() if name != left_out}
            if left_out == "ssl.certificate.location":
                del fewer["ssl.key.location"]
            with pytest.raises(KafkaException):
                Producer(fewer).list_topics(timeout=1.0)
