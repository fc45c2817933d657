"""Topics and settings as Kafka's tools create, delete and describe them.

What a topic of Kafka can be told and this project has, is done: partitions (queues), retention,
compaction, the size of messages. Anything else is refused by name, never ignored: a topic that
silently is not what was asked for is worse than none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.client import Compaction
from semel.client.transport.cluster import Cluster
from semel.gateway.answers import answer
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.producing.kafka_numbers import kafka_epoch
from semel.gateway.refusals import error_code
from semel.gateway.versions import ApiKey
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.v1 import controller_pb2

PARTITIONS_DEFAULT: Final = 4
"""What -1, "the default", means; as for `semel topic create`."""
TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resources that have settings."""
_TOPIC_SETTING: Final = 1
"""Where a setting's value comes from."""
_NUMBERS: Final = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "max.message.bytes": "message_bytes_max",
}
_POLICY: Final = "cleanup.policy"


class TopicAdmin:
    """The handlers. They live on the client's I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
        }

    async def init_producer_id(self, request: Any, context: RequestContext) -> Any:
        """Gives an idempotent producer an id that nobody else has. A transactional one is refused:
        what it would do next is not served."""
        if request.transactional_id is not None:
            code, number, epoch = ErrorCode.transactional_id_authorization_failed, -1, -1
        else:
            code, number, epoch = await self._new_producer()
        return answer(request, error_code=code, producer_id=number, producer_epoch=epoch)

    async def _new_producer(self) -> tuple[ErrorCode, int, int]:
        wanted = controller_pb2.OpenProducerRequest(open_id=os.urandom(16))
        try:
            reply = await self._cluster.controller("OpenProducer", wanted)
        except SemelError as error:
            if error.retriable:
                return ErrorCode.coordinator_not_available, -1, -1
            return error_code(error), -1, -1
        return ErrorCode.none, reply.producer_id, kafka_epoch(reply.epoch)

    async def create_topics(self, request: Any, context: RequestContext) -> Any:
        """Answers CreateTopics, versions 2 to 4."""
        results = await asyncio.gather(
            *(self._create(topic, request.validate_only, context) for topic in request.topics)
        )
        return answer(request, topics=results)

    async def _create(self, topic: Any, validate: bool, context: RequestContext) -> dict[str, Any]:
        code, message = ErrorCode.none, None
        try:
            if topic.assignments:
                raise InvalidRequest("the cluster places queues itself: name no brokers")
            settings = _settings_of(topic.configs)
            if topic.num_partitions < 1 and topic.num_partitions != -1:
                raise InvalidRequest(f"a topic has no {topic.num_partitions} partitions")
            if not validate:
                count = topic.num_partitions if topic.num_partitions > 0 else PARTITIONS_DEFAULT
                await context.client.admin.create_topic(topic.name, count, **settings)
        except SemelError as error:
            code, message = error_code(error), error.message
        return {"name": topic.name, "error_code": code, "error_message": message}

    async def delete_topics(self, request: Any, context: RequestContext) -> Any:
        """Answers DeleteTopics, versions 1 to 3."""
        results = await asyncio.gather(
            *(self._delete(name, context) for name in request.topic_names)
        )
        return answer(request, responses=results)

    async def _delete(self, name: str, context: RequestContext) -> dict[str, Any]:
        code = ErrorCode.none
        known = self._cluster.routes.topic(name)
        try:
            await context.client.admin.delete_topic(name)
            self._cluster.on_topic_gone(name, None if known is None else known.topic_id)
        except SemelError as error:
            code = error_code(error)
        return {"name": name, "error_code": code}

    async def describe_configs(self, request: Any, context: RequestContext) -> Any:
        """Answers DescribeConfigs, versions 1 and 2: a topic's settings; gateways have none."""
        results = await asyncio.gather(
            *(self._describe(resource, context) for resource in request.resources)
        )
        return answer(request, results=results)

    async def _describe(self, resource: Any, context: RequestContext) -> dict[str, Any]:
        code, message, configs = ErrorCode.none, None, []
        try:
            if resource.resource_type == TOPIC:
                configs = await _topic_settings(resource.resource_name, context)
            elif resource.resource_type != BROKER:
                raise InvalidRequest(f"resources of kind {resource.resource_type} are not known")
        except SemelError as error:
            code, message = error_code(error), error.message
        wanted = resource.configuration_keys
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [each for each in configs if wanted is None or each["name"] in wanted],
        }


def _settings_of(configs: Any) -> dict[str, Any]:
    """Returns the arguments of `create_topic`. Raises InvalidRequest."""
    settings: dict[str, Any] = {}
    for config in configs:
        name, text = config.name, config.value or ""
        if name == _POLICY:
            settings |= _policy_of(text)
        elif name in _NUMBERS:
            try:
                settings[_NUMBERS[name]] = int(text)
            except ValueError:
                raise InvalidRequest(f"{name} must be a number, not {text!r}") from None
        else:
            known = ", ".join([_POLICY, *_NUMBERS])
            raise InvalidRequest(f"topics have no setting {name!r}; known are {known}")
    return settings


def _policy_of(text: str) -> dict[str, Any]:
    names = {each.strip() for each in text.split(",")}
    if not names <= {"delete", "compact"}:
        raise InvalidRequest(f"{_POLICY} must be delete or compact, not {text!r}")
    return {"compaction": Compaction()} if "compact" in names else {}


async def _topic_settings(name: str, context: RequestContext) -> list[dict[str, Any]]:
    """Raises SemelError."""
    settings = (await context.client.admin.describe_topic(name)).settings
    compacted = settings.compaction is not None
    values = {_POLICY: "compact" if compacted else "delete"}
    values |= {name: str(getattr(settings, field)) for name, field in _NUMBERS.items()}
    return [
        {
            "name": each,
            "value": value,
            "read_only": True,
            "config_source": _TOPIC_SETTING,
            "is_sensitive": False,
            "synonyms": (),
        }
        for each, value in values.items()
    ]
