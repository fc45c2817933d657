"""Which gateways clients are told of: those that are there, and for a while those that were."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from kio.index import load_request_schema

from semel.gateway import api_versions
from semel.gateway.answers import respond
from semel.gateway.dispatch import GatewayPlace, RequestContext, Software
from semel.gateway.metadata import Catalog
from semel.gateway.versions import TABLE, ApiKey
from semel.protos.errors import UnknownTopic

HERE = GatewayPlace(1, "here", 9092)
GONE = GatewayPlace(2, "gone", 9092)
OLD_JAVA = Software("apache-kafka-java", "3.9.2")
FLAGS = {
    "allow_auto_topic_creation",
    "include_cluster_authorized_operations",
    "include_topic_authorized_operations",
}
"""Some versions of the requests have them."""


class OneOfTwo:
    """Two gateways, one of which has just ended."""

    own = HERE
    present = (HERE,)
    missed = (GONE,)

    async def checked(self) -> tuple[GatewayPlace, ...]:
        return self.present


class NoTopics:
    async def every(self) -> list[Any]:
        return []

    async def newest(self, name: str) -> Any:
        raise UnknownTopic(name)


async def ask(key: ApiKey, version: int, software: Software = OLD_JAVA, /, **values: Any) -> Any:
    cluster: Any = SimpleNamespace(routes=SimpleNamespace(cluster_id="c"))
    topics: Any = NoTopics()
    client: Any = None
    context = RequestContext(
        api_key=key,
        version=version,
        client_id="tester",
        host="127.0.0.1",
        client=client,
        gateways=OneOfTwo(),
        software=software,
    )
    kind = load_request_schema(key, version)
    flags = dict.fromkeys(FLAGS & {each.name for each in dataclasses.fields(kind)}, False)
    request = respond(kind, **(flags | values))
    handlers = {**Catalog(cluster, topics).handlers(), **api_versions.handlers()}
    return await handlers[key](request, context)


@pytest.mark.parametrize(("version", "topics"), [(0, ()), (1, None), (8, None), (8, ("t",))])
async def test_java_asking_for_topics_is_told_of_a_gateway_that_is_expected_back(
    version: int, topics: tuple[str, ...] | None
) -> None:
    named = topics and [{"name": name} for name in topics]
    reply = await ask(ApiKey.METADATA, version, topics=named)
    assert [broker.node_id for broker in reply.brokers] == [HERE.node_id, GONE.node_id]
    if version:
        assert reply.controller_id == HERE.node_id


@pytest.mark.parametrize(
    "software",
    [Software(), Software("librdkafka", "2.16.0"), Software("apache-kafka-java", "4.3.1")],
    ids=str,
)
async def test_a_client_that_looks_at_its_bootstrap_again_is_not(software: Software) -> None:
    reply = await ask(ApiKey.METADATA, 8, software, topics=None)
    assert [broker.node_id for broker in reply.brokers] == [HERE.node_id]


async def test_a_client_is_asked_what_it_is() -> None:
    software = Software()
    values = {"client_software_name": "apache-kafka-java", "client_software_version": "3.9.2"}
    await ask(ApiKey.API_VERSIONS, 3, software, **values)
    assert software == OLD_JAVA


async def test_who_asks_for_no_topic_is_told_who_is_there() -> None:
    reply = await ask(ApiKey.METADATA, TABLE[ApiKey.METADATA].highest, topics=())
    assert [broker.node_id for broker in reply.brokers] == [HERE.node_id]
    described = await ask(ApiKey.DESCRIBE_CLUSTER, 0)
    assert [broker.broker_id for broker in described.brokers] == [HERE.node_id]
