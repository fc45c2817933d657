"""Kafka's requests about transactions, in all versions that are served, as calls of the service.

Not here: what the answers are (`coordination/transaction_service.py`, `transactions/`), Produce
(`producing/produce.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from semel.client.core.routing import QueueRoute
from semel.gateway.answers import answer
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.refused import Refused
from semel.gateway.coordination.transaction_service import TransactionRefused, TransactionService
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.handlers.offset_requests import storage_code, told_by_place, wanted_progress
from semel.gateway.producing.kafka_numbers import kafka_epoch
from semel.gateway.refusals import error_code
from semel.gateway.topic_book import TopicBook
from semel.gateway.transactions.standing import Producer
from semel.gateway.versions import ApiKey
from semel.protos.errors import SemelError
from semel.protos.security.rules import Kind, Resource
from semel.protos.v1 import controller_pb2

SPLITS_MAX = 20
"""How often queues are opened while brokers tell of splits: each may tell of one more, and a queue
of one slot has at most 16 behind it."""
NO_PRODUCER = -1
"""The producer id of a client that has none."""
FENCED_VERSION = 4
"""From here on InitProducerId tells a client that it is fenced by a code of its own."""


class TransactionHandlers:
    """The handlers; each is one API."""

    def __init__(
        self, service: TransactionService, groups: GroupService, topics: TopicBook
    ) -> None:
        self._service = service
        self._groups = groups
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API, for the dispatcher."""
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self.offset_commit,
            ApiKey.END_TXN: self.end,
        }

    async def init_producer_id(self, request: Any, context: RequestContext) -> Any:
        """InitProducerId 0–4: an id that nobody else has, or the next epoch of a transactional
        id."""
        if request.transactional_id is None:
            code, number, epoch = await _new_producer(context)
            return answer(request, error_code=code, producer_id=number, producer_epoch=epoch)
        shown = None
        if getattr(request, "producer_id", NO_PRODUCER) != NO_PRODUCER:
            shown = request.producer_id, request.producer_epoch
        timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
        try:
            code, number, epoch = await self._service.initialise(
                request.transactional_id, timeout_ms, shown, context.caller
            )
        except TransactionRefused as refused:
            code, number, epoch = refused.code, -1, -1
        if code is ErrorCode.invalid_producer_epoch and context.version >= FENCED_VERSION:
            code = ErrorCode.producer_fenced
        return answer(request, error_code=code, producer_id=number, producer_epoch=epoch)

    async def add_partitions(self, request: Any, context: RequestContext) -> Any:
        """AddPartitionsToTxn 0–1: all of them, or none."""
        topics = request.v3_and_below_topics
        producer = Producer(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        )
        codes, rest = await self._add(producer, topics, context)
        return answer(
            request,
            results_by_topic_v3_and_below=[
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {
                            "partition_index": number,
                            "partition_error_code": codes.get((topic.name, number), rest),
                        }
                        for number in topic.partitions
                    ],
                }
                for topic in topics
            ],
        )

    async def _add(
        self, producer: Producer, topics: Iterable[Any], context: RequestContext
    ) -> tuple[dict[tuple[str, int], ErrorCode], ErrorCode]:
        """Opens queues for a transaction. Returns what is wrong with some of them, and the code of
        all others."""
        renewed = False
        for _ in range(SPLITS_MAX):
            found: list[QueueRoute] = []
            codes: dict[tuple[str, int], ErrorCode] = {}
            for topic in topics:
                for number in topic.partitions:
                    queue = await self._queue(topic.name, number)
                    if isinstance(queue, ErrorCode):
                        codes[topic.name, number] = queue
                    else:
                        found.append(queue)
            if codes:
                break
            try:
                return {}, await self._service.add(producer, found, context.caller)
            except TransactionRefused as refused:
                if refused.split is not None:
                    self._topics.on_split(refused.split.queue.topic_id, refused.split)
                    continue
                if refused.code is ErrorCode.unknown_topic_or_partition and not renewed:
                    # It was deleted, and may have been made anew, elsewhere.
                    renewed = True
                    for topic in topics:
                        with contextlib.suppress(SemelError):
                            await self._topics.renewed(topic.name)
                    continue
                codes = {
                    (topic.name, number): refused.code
                    for topic in topics
                    for number in topic.partitions
                    if refused.resource == str(Resource(Kind.TOPIC, topic.name))
                }
                if not codes:
                    return {}, refused.code
                break
        else:
            return {}, ErrorCode.not_leader_or_follower
        return codes, ErrorCode.operation_not_attempted

    async def _queue(self, name: str, partition: int) -> QueueRoute | ErrorCode:
        try:
            topic = await self._topics.find_with(name, partition)
            return topic.partition(partition).open
        except SemelError as error:
            return error_code(error)

    async def add_offsets(self, request: Any, context: RequestContext) -> Any:
        """AddOffsetsToTxn 0–1: the transaction begins, if none is open."""
        producer = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
        try:
            if context.caller is not None:
                await context.caller.check_member(request.group_id)
            code = await self._service.add(producer, (), context.caller)
        except TransactionRefused as refused:
            code = refused.code
        except Refused as refused:
            code = ErrorCode(int(refused.error))
        return answer(request, error_code=code)

    async def offset_commit(self, request: Any, context: RequestContext) -> Any:
        """TxnOffsetCommit 0–3, at the group's coordinator."""
        wanted, codes = wanted_progress(request.topics)
        producer = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
        member = None
        if getattr(request, "generation_id", -1) >= 0 or getattr(request, "member_id", ""):
            member = request.member_id, request.group_instance_id, request.generation_id
        try:
            staged_in = await self._service.staged_in(producer, context.caller)
            failed = await self._groups.stage_commit(
                request.group_id, member, wanted, staged_in, context.caller
            )
        except TransactionRefused as refused:
            codes |= dict.fromkeys(wanted, refused.code)
        except Refused as refused:
            codes |= dict.fromkeys(wanted, ErrorCode(int(refused.error)))
        else:
            codes |= {place: storage_code(error) for place, error in failed.items()}
        return answer(
            request,
            topics=told_by_place(request.topics, codes),
        )

    async def end(self, request: Any, context: RequestContext) -> Any:
        """EndTxn 0–1."""
        producer = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
        try:
            code = await self._service.end(producer, request.committed, context.caller)
        except TransactionRefused as refused:
            code = refused.code
        return answer(request, error_code=code)


async def _new_producer(context: RequestContext) -> tuple[ErrorCode, int, int]:
    wanted = controller_pb2.OpenProducerRequest(open_id=os.urandom(16))
    session = context.client._session
    try:
        reply = await session.await_run(session.cluster.controller("OpenProducer", wanted))
    except SemelError as error:
        if error.retriable:
            return ErrorCode.coordinator_not_available, -1, -1
        return error_code(error), -1, -1
    return ErrorCode.none, reply.producer_id, kafka_epoch(reply.epoch)
