"""The founding of each broker group: a record that prevents a second founding.

How it works. A node with an empty directory asks (`on_request`). A group that is unknown gets a
*grant*: a random name for its founding, for which its founding members promise each other to take
part (`broker/membership/founding.py`). When all have promised, the first of them reports that, and
the record is *founded*. From then on each node that asks gets that answer and begins nothing anew;
the members feed it. Only an operator ends a founding (`anew`); the nodes of the old founding are
refused from then on.

A store can be lost, so the record alone does not keep a group from being founded twice: all
founding members must be empty as well. A store that was lost learns the foundings again from the
reports of the nodes.

While an operator's `anew` is unfinished, the record also names the previous founding: the rest of
the group is on its way from that one to the new one, and the same call, repeated, goes on with it.

Invariants
1. A record that is founded changes by `anew` only.
2. Every answer is stored before it is given.
3. The records in memory are those in the store, except while a change is under way. A change runs
   to its end, also when its caller hangs up.

Not here: the rule by which nodes act (`broker/membership/founding.py`), their reports
(`registry.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from semel.controller import records
from semel.controller.epoch import ControllerEpoch, unbroken
from semel.protos.errors import DataDirectoryError, InvalidRequest
from semel.protos.v1.common_pb2 import NodeAddress
from semel.protos.v1.controller_pb2 import FoundGroupReply, FoundGroupRequest
from semel.protos.v1.metadata_pb2 import FoundingRecord

log = logging.getLogger(__name__)

NODES_MAX: Final = 7
UNKNOWN: Final = "?"
"""Stands for a previous founding whose name is unknown."""


class Foundings:
    """The foundings of all groups. `clock_us` is the wall clock."""

    def __init__(
        self,
        epoch: ControllerEpoch,
        *,
        clock_us: Callable[[], int],
        nodes: Callable[[int], Sequence[NodeAddress]],
        has_history: Callable[[int], bool],
    ) -> None:
        """`nodes` gives the known members of a group, `has_history` whether it ever had a
        master."""
        self._epoch = epoch
        self._clock_us = clock_us
        self._nodes = nodes
        self._has_history = has_history
        self._records: dict[int, FoundingRecord] = {}
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Reads the stored foundings."""
        for key, entry in (await self._epoch.store.scan(records.FOUNDINGS)).items():
            record = records.load(FoundingRecord, key, entry)
            self._records[record.group_id] = record

    async def on_request(self, request: FoundGroupRequest) -> FoundGroupReply:
        """Answers an empty node, or an operator.

        Raises DataDirectoryError for a caller of another cluster, InvalidRequest.
        """
        if request.cluster_id != self._epoch.cluster_id:
            raise DataDirectoryError(
                f"the caller belongs to cluster {request.cluster_id}, this is cluster "
                f"{self._epoch.cluster_id}; name the right controllers"
            )
        members = sorted(set(request.members))
        asks = not (members or request.anew or request.complete_id)
        if not request.group_id or (not asks and not 1 <= len(members) <= NODES_MAX):
            raise InvalidRequest(
                f"a founding names a group and 1 to {NODES_MAX} nodes, not group "
                f"{request.group_id} and nodes {members}"
            )
        if asks:
            async with self._changing:
                return self._known(request.group_id)
        return await unbroken(self._answer(request, members))

    async def _answer(self, request: FoundGroupRequest, members: list[int]) -> FoundGroupReply:
        async with self._changing:
            return await self._decide(request, members)

    async def _decide(self, request: FoundGroupRequest, members: list[int]) -> FoundGroupReply:
        group_id = request.group_id
        record = self._records.get(group_id)
        if request.anew:
            if record is None or not record.previous_id:
                known = record is not None and record.founded
                previous = record.founding_id if record and known else request.previous_id
                log.warning(
                    "GROUP BEGUN ANEW by order of an operator group=%d previous=%s nodes=%s",
                    group_id,
                    previous or "?",
                    members,
                )
                await self._store(
                    group_id, _new_id(), members, founded=True, previous=previous or UNKNOWN
                )
        elif record is not None and record.previous_id:
            if request.complete_id == record.founding_id:
                await self._store(group_id, record.founding_id, members, founded=True)
        elif record is None and self._has_history(group_id):
            # Its members run programs from before foundings; upgraded, they report their founding.
            return self._known(group_id)
        elif record is None or (not record.founded and list(record.members) != members):
            await self._store(group_id, _new_id(), members, founded=False)
        elif not record.founded and request.complete_id == record.founding_id:
            log.info("group is founded group=%d founding=%s", group_id, record.founding_id)
            await self._store(group_id, record.founding_id, members, founded=True)
        return self._known(group_id)

    def _known(self, group_id: int) -> FoundGroupReply:
        record = self._records.get(group_id)
        if record is None:
            return FoundGroupReply(founded=self._has_history(group_id), nodes=self._nodes(group_id))
        return FoundGroupReply(
            founding_id=record.founding_id,
            founded=record.founded,
            nodes=self._nodes(group_id),
            previous_id=record.previous_id,
        )

    async def on_report(self, group_id: int, node_id: int, founding_id: str) -> None:
        """Takes in the founding that a node reports; an empty one says nothing.

        Raises DataDirectoryError for a node of a founding that was ended.
        """
        record = self._records.get(group_id)
        if not founding_id or (
            record is not None
            and record.founded
            and founding_id in (record.founding_id, record.previous_id)
        ):
            return
        record = await unbroken(self._learn(group_id, node_id, founding_id))
        if founding_id not in (record.founding_id, record.previous_id):
            raise DataDirectoryError(
                f"node {node_id} belongs to founding {founding_id} of broker group {group_id}, "
                f"which was ended; the group's founding is {record.founding_id} now. The node's "
                "data is of another history: give it an empty directory"
            )

    async def _learn(self, group_id: int, node_id: int, founding_id: str) -> FoundingRecord:
        """The founding of the group; the reported one if none was stored."""
        async with self._changing:
            record = self._records.get(group_id)
            if record is None or not record.founded:
                log.info("group was founded before group=%d founding=%s", group_id, founding_id)
                record = await self._store(group_id, founding_id, [node_id], founded=True)
            return record

    async def _store(
        self,
        group_id: int,
        founding_id: str,
        members: Sequence[int],
        *,
        founded: bool,
        previous: str = "",
    ) -> FoundingRecord:
        record = FoundingRecord(
            group_id=group_id,
            founding_id=founding_id,
            members=members,
            founded=founded,
            founded_us=self._clock_us() if founded else 0,
            previous_id=previous,
        )
        await self._epoch.transact(puts={records.founding_key(group_id): records.dump(record)})
        self._records[group_id] = record
        return record


def _new_id() -> str:
    return secrets.token_hex(8)
