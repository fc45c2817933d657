"""Which JoinGroup requests a group takes, and which protocol its members have in common. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from semel.gateway.groups.kafka_member import KafkaMember
from semel.gateway.groups.results import GroupError, GroupLimits, Join


def check_sizes(join: Join, limits: GroupLimits) -> GroupError:
    """Returns the error of a request that is out of bounds whatever the group has, or NONE."""
    names = [join.client_id, join.instance_id or "", join.member_id, join.protocol_type]
    offered = [name for name, _ in join.protocols]
    if not limits.session_ms_min <= join.session_ms <= limits.session_ms_max:
        return GroupError.INVALID_SESSION_TIMEOUT
    if any(len(name) > limits.name_bytes_max for name in (*names, *offered)):
        return GroupError.INVALID_REQUEST
    if len(set(offered)) < len(offered) or len(offered) > limits.protocols_max:
        return GroupError.INVALID_REQUEST
    if join_bytes(join) > limits.member_bytes_max:
        return GroupError.INVALID_REQUEST
    return GroupError.NONE


def check_room(
    join: Join, limits: GroupLimits, others: Collection[KafkaMember], places: int
) -> GroupError:
    """Returns the error if the group has no room for the member beside the `others`; it has given
    away so many `places` in all, without this member's."""
    if places >= limits.members_max:
        return GroupError.GROUP_MAX_SIZE_REACHED
    if sum(member.size for member in others) + join_bytes(join) > limits.group_bytes_max:
        return GroupError.GROUP_MAX_SIZE_REACHED
    return GroupError.NONE


def join_bytes(join: Join) -> int:
    """What the protocols of a request take."""
    return sum(len(name) + len(metadata) for name, metadata in join.protocols)


def supports(join: Join, protocol_type: str, others: Collection[KafkaMember]) -> bool:
    """Whether some protocol would be left that the member and all others have."""
    if not join.protocol_type or not join.protocols:
        return False
    if not others:
        return True
    common = common_protocols(others)
    return join.protocol_type == protocol_type and any(name in common for name, _ in join.protocols)


def common_protocols(members: Collection[KafkaMember]) -> set[str]:
    """The names of the protocols that all members have."""
    sets = [member.protocols.keys() for member in members]
    return set.intersection(*map(set, sets)) if sets else set()


def choose_protocol(members: Mapping[str, KafkaMember], leader: str) -> str:
    """Each member votes for what it prefers of what all have; the leader's order settles a tie."""
    common = common_protocols(members.values())
    votes = Counter(
        next(name for name in member.protocols if name in common) for member in members.values()
    )
    most = max(votes.values())
    return next(name for name in members[leader].protocols if votes[name] == most)
