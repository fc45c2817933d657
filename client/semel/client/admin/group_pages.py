"""Consumer groups for lists that are searched and paged: names first, figures of one page only.

How it works. Controllers know the groups that consumers joined, and count their members; masters
know the groups that have progress on their queues. Both are asked for names alone, and masters for
the sums of the wanted groups, by topic: of a million queues' lags one number a group travels.

Not here: one group in full (`admin/calls.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from semel.client.admin.descriptions import Described, GroupSummary
from semel.client.admin.topic_index import TopicIndex
from semel.client.config import whole
from semel.client.transport.cluster import Cluster
from semel.protos.errors import InvalidRequest
from semel.protos.v1 import broker_pb2, controller_pb2

LIMIT_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage(Described):
    """A part of the consumer groups whose names match, by name."""

    groups: list[GroupSummary]
    matched: int
    """Groups that match, on all pages."""
    scanned: int
    """Groups that were looked at: all that the caller may see."""


async def find_groups(
    cluster: Cluster, topics: TopicIndex, search: str, start: int, limit: int
) -> GroupPage:
    """Returns the matching groups from number `start` on, in the order of their names. Raises
    InvalidRequest; UnsupportedVersion for brokers that are too old to tell."""
    if not isinstance(search, str):
        raise InvalidRequest(f"search must be a text, not {search!r}")
    whole("start", start, 0, 1 << 62)
    whole("limit", limit, 1, LIMIT_MAX)
    await topics.refresh()
    counted, replies = await asyncio.gather(
        cluster.controller("ListGroups", controller_pb2.ListGroupsRequest(counts_only=True)),
        _ask_masters(cluster, topics, broker_pb2.SumGroupsRequest()),
    )
    members = {info.group: info.member_count or len(info.members) for info in counted.groups}
    names = sorted({*members, *(name for reply in replies for name in reply.names)})
    wanted = search.casefold()
    found = [name for name in names if wanted in name.casefold()] if wanted else names
    page = found[start : start + limit]
    sums: dict[str, list[Any]] = {name: [] for name in page}
    if page:
        request = broker_pb2.SumGroupsRequest(groups=page)
        for reply in await _ask_masters(cluster, topics, request):
            for each in reply.sums:
                sums[each.group].append(each)
    return GroupPage(
        groups=[_summary(name, sums[name], members, topics) for name in page],
        matched=len(found),
        scanned=len(names),
    )


async def _ask_masters(cluster: Cluster, topics: TopicIndex, request: Any) -> list[Any]:
    asked = (cluster.call_master(group, "SumGroups", request) for group in topics.group_ids)
    return list(await asyncio.gather(*asked))


def _summary(
    name: str, sums: list[Any], members: dict[str, int], topics: TopicIndex
) -> GroupSummary:
    known = [each for each in sums if topics.name_of(each.topic_id) is not None]
    return GroupSummary(
        group=name,
        members=members.get(name, 0),
        topics=sorted({str(topics.name_of(each.topic_id)) for each in known}),
        lag=sum(each.lag for each in known),
        locks=sum(each.locks for each in known),
        joined=name in members,
    )
