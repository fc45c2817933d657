"""Topics and settings as Kafka's tools create, change, delete and describe them.

What a topic of Kafka can be told and this project has, is done: partitions (queues), retention,
compaction, the size of messages. Anything else is refused by name, never ignored: a topic that
silently is not what was asked for is worse than none.

Not here: what settings mean (`topic_configs.py`), what partitions are (`partitions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from semel.client.transport.cluster import Cluster
from semel.gateway.answers import answer
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.partitions import lineages_of
from semel.gateway.refusals import error_code
from semel.gateway.topic_configs import (
    Alteration,
    altered,
    arguments,
    configs_of,
    creation,
    replaced,
)
from semel.gateway.versions import ApiKey
from semel.protos.errors import InvalidRequest, SemelError

PARTITIONS_DEFAULT: Final = 4
"""What -1, "the default", means; as for `semel topic create`."""
TOPIC: Final = 2
BROKER: Final = 4
"""Kinds of resources that have settings."""
_TOPIC_SETTING: Final = 1
"""Where a setting's value comes from."""
_Wanted: TypeAlias = Callable[[Any, Mapping[str, str]], dict[str, str]]
"""Returns the values that a resource of a request wants, from those that a topic has. Raises
InvalidRequest."""


class TopicAdmin:
    """The handlers. They live on the client's I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
        }

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
            settings = creation({each.name: each.value for each in topic.configs})
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

    async def create_partitions(self, request: Any, context: RequestContext) -> Any:
        """Answers CreatePartitions, versions 0 to 3: the widest queues are split."""
        results = await asyncio.gather(
            *(self._grow(topic, request.validate_only, context) for topic in request.topics)
        )
        return answer(request, results=results)

    async def _grow(self, topic: Any, validate: bool, context: RequestContext) -> dict[str, Any]:
        code, message = ErrorCode.none, None
        try:
            route = await self._cluster.topic(topic.name, refresh=True)
            present = len(lineages_of(route))
            if topic.assignments:
                code = ErrorCode.invalid_replica_assignment
                message = "the cluster places queues itself: name no brokers"
            elif topic.count <= present:
                code = ErrorCode.invalid_partitions
                message = f"topic {topic.name!r} has {present} partitions: it can only get more"
            elif not validate:
                await context.client.admin.alter_topic(topic.name, queues=topic.count)
                await self._cluster.topic(topic.name, refresh=True)
        except SemelError as error:
            invalid = type(error) is InvalidRequest
            code = ErrorCode.invalid_partitions if invalid else error_code(error)
            message = error.message
        return {"name": topic.name, "error_code": code, "error_message": message}

    async def alter_configs(self, request: Any, context: RequestContext) -> Any:
        """Answers AlterConfigs, versions 0 to 2: settings that are not named get their defaults."""

        def wanted(resource: Any, before: Mapping[str, str]) -> dict[str, str]:
            return replaced(before, {each.name: each.value for each in resource.configs})

        return await self._alter(request, wanted, context)

    async def incremental_alter_configs(self, request: Any, context: RequestContext) -> Any:
        """Answers IncrementalAlterConfigs, versions 0 and 1."""

        def wanted(resource: Any, before: Mapping[str, str]) -> dict[str, str]:
            changes = [
                Alteration(each.name, each.config_operation, each.value)
                for each in resource.configs
            ]
            return altered(before, changes)

        return await self._alter(request, wanted, context)

    async def _alter(self, request: Any, wanted: _Wanted, context: RequestContext) -> Any:
        responses = [
            await self._alter_one(resource, wanted, request.validate_only, context)
            for resource in request.resources
        ]
        return answer(request, responses=responses)

    async def _alter_one(
        self, resource: Any, wanted: _Wanted, validate: bool, context: RequestContext
    ) -> dict[str, Any]:
        code, message = ErrorCode.none, None
        try:
            if resource.resource_type != TOPIC:
                raise InvalidRequest("only topics have settings that can be changed here")
            name = resource.resource_name
            before = await _configs(name, context)
            changes = arguments(before, wanted(resource, before))
            if changes and not validate:
                await context.client.admin.alter_topic(name, **changes)
        except SemelError as error:
            code, message = _config_error(error), error.message
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }

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
                found = await _configs(resource.resource_name, context)
                configs = [
                    {
                        "name": name,
                        "value": value,
                        "read_only": False,
                        "config_source": _TOPIC_SETTING,
                        "is_sensitive": False,
                        "synonyms": (),
                    }
                    for name, value in found.items()
                ]
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


async def _configs(name: str, context: RequestContext) -> dict[str, str]:
    """Raises SemelError."""
    return configs_of((await context.client.admin.describe_topic(name)).settings)


def _config_error(error: SemelError) -> ErrorCode:
    return ErrorCode.invalid_config if type(error) is InvalidRequest else error_code(error)
