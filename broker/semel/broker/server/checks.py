"""Checks that several calls make of their requests and of the queues in them."""

from __future__ import annotations

from semel.broker.replica.replica import Replica
from semel.broker.state import NAME_CHARACTERS_MAX
from semel.protos.errors import InvalidRequest, SemelError, UnknownQueue
from semel.protos.ids import QueueKey


def known(replica: Replica, key: QueueKey) -> QueueKey:
    """`key`, if this broker group has the queue. Raises QueueMoved, UnknownQueue."""
    if key not in replica.state.queues:
        raise absent(replica, key)
    return key


def absent(replica: Replica, key: QueueKey) -> SemelError:
    """QueueMoved or UnknownQueue."""
    if key in replica.state.moves.places:
        return replica.state.absent(key)
    return UnknownQueue(
        f"queue {key.queue_id} of topic {key.topic_id} is not on broker group "
        f"{replica.config.group_id}; refresh the routes"
    )


def check_settled(replica: Replica, key: QueueKey) -> None:
    """Raises Throttled while the queue is sealed by a move: it may live at the other broker
    group already, and hold more there than this one can know."""
    sealed = replica.state.moves.frozen(key)
    if sealed is not None:
        raise sealed


def check_room_for_group(replica: Replica, group: str) -> None:
    """Raises InvalidRequest if one more consumer group would be too many. Calls that are under way
    at once may go beyond by their number."""
    groups = replica.state.groups
    if groups.count >= replica.config.consumer_groups_max and not groups.has(group):
        raise InvalidRequest(
            f"{groups.count:,} consumer groups have offsets here, as many as --consumer-groups-max"
            " of the brokers allows: delete some with `semel group delete`"
        )


def check_group(group: str) -> None:
    """Raises InvalidRequest unless this can be the name of a consumer group."""
    if not 0 < len(group) <= NAME_CHARACTERS_MAX or not group.isprintable():
        raise InvalidRequest(
            f"a consumer group's name has 1 to {NAME_CHARACTERS_MAX} printable characters:"
            f" {group[:60]!r}"
        )
