"""The check that a queue holds no delayed messages, made before a split of it is decided.

How it works. A broker group below DELAYED_SPLIT_LEVEL does not split a queue that holds delayed
messages, and a decided split cannot be taken back: without this check a split could wait for years.
The master of each queue's group is asked, unless it has told that level. A group that does not
answer does not prevent the decision, because the split waits for that group in any case. The split
also waits for a message that is delayed between the question and the split.

Not here: the split itself (`splits.py`), the broker's own refusal.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from semel.controller.topics.setting_levels import GroupLevels, told_level
from semel.controller.topics.splits import queues_of
from semel.protos.errors import InvalidRequest, SemelError
from semel.protos.levels import DELAYED_SPLIT_LEVEL
from semel.protos.v1.broker_pb2 import ListOffsetsReply
from semel.protos.v1.common_pb2 import QueueRef
from semel.protos.v1.metadata_pb2 import SplitRecord, TopicRecord

log = logging.getLogger(__name__)

AskOffsets: TypeAlias = Callable[[int, Sequence[QueueRef]], Awaitable[ListOffsetsReply]]
"""Asks a group about queues of its own. Raises SemelError."""


async def require_nothing_delayed(
    ask: AskOffsets, groups: GroupLevels, record: TopicRecord, plan: Sequence[SplitRecord]
) -> None:
    """Raises InvalidRequest when a queue that is to be split holds delayed messages, and its group
    cannot hand them to children; Throttled while it has not told whether it can."""
    homes = {queue.queue_id: queue.group_id for queue in queues_of(record)}
    by_group: dict[int, list[QueueRef]] = defaultdict(list)
    for split in plan:
        queue = QueueRef(topic_id=record.topic_id, queue_id=split.queue_id)
        group_id = homes[split.queue_id]
        if (groups.level(group_id) or 0) < DELAYED_SPLIT_LEVEL:
            by_group[group_id].append(queue)
    for group_id, queues in by_group.items():
        try:
            reply = await ask(group_id, queues)
        except SemelError as error:
            log.info(
                "split is decided without the check group=%s error=%s", group_id, error.message
            )
            continue
        for found in reply.queues:
            if found.delayed_messages:
                told_level(group_id, groups)
                first = datetime.fromtimestamp(found.next_due_us / 1_000_000, UTC)
                raise InvalidRequest(
                    f"queue {found.queue.queue_id} of topic {record.name!r} holds"
                    f" {found.delayed_messages} delayed messages, the first until"
                    f" {first:%Y-%m-%d %H:%M:%S} UTC. Broker group {group_id} splits it with them"
                    f" from feature level {DELAYED_SPLIT_LEVEL} on (`semel cluster upgrade"
                    " --finish`), and until then only once they are delivered; nothing was changed"
                )
