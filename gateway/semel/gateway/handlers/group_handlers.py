"""Kafka's requests about groups, in all versions that are served, as calls of the group service.

How it works. What older versions of a request lack has the value that Kafka gives it. Responses say
all that is known, and `answers.answer` leaves out what the version lacks.

Not here: what the answers are (`coordination/group_service.py`, `groups/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from semel.gateway.answers import answer
from semel.gateway.coordination.callers import Caller
from semel.gateway.coordination.committed_offsets import Place
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.line_progress import Progress
from semel.gateway.coordination.refused import Refused
from semel.gateway.coordination.transaction_service import TransactionRefused, TransactionService
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.groups.results import GroupError, Join, JoinResult, Leaver, Sync
from semel.gateway.handlers.offset_requests import storage_code, told_by_place, wanted_progress
from semel.gateway.versions import ApiKey
from semel.protos.errors import SemelError, Throttled

GROUP_KEY: Final = 0
"""What a FindCoordinator asks for: a group's coordinator. Version 0 knows nothing else."""
TRANSACTION_KEY: Final = 1
"""Or that of a transactional id."""
"""The most of one committed offset; Kafka's `offset.metadata.max.bytes`."""
ID_REQUIRED_VERSION: Final = 4
"""From here on a JoinGroup without a member id is answered with one."""
NO_LEADER_EPOCH: Final = -1


class GroupHandlers:
    """The handlers; each is one API."""

    def __init__(self, service: GroupService, transactions: TransactionService) -> None:
        self._service = service
        self._transactions = transactions

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API, for the dispatcher."""
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
            ApiKey.OFFSET_DELETE: self.offset_delete,
        }

    async def find_coordinator(self, request: Any, context: RequestContext) -> Any:
        """FindCoordinator 0–2: of a group, or of a transactional id."""
        code, place = ErrorCode.none, None
        try:
            kind = getattr(request, "key_type", GROUP_KEY)
            if kind == GROUP_KEY:
                place = await self._service.find(request.key, context.caller)
            elif kind == TRANSACTION_KEY:
                place = await self._transactions.find(request.key)
            else:
                code = ErrorCode.invalid_request
        except Refused as refused:
            code = _code(refused.error)
        except TransactionRefused as refused:
            code = refused.code
        return answer(
            request,
            error_code=code,
            error_message=None if place is not None else code.name.upper(),
            node_id=-1 if place is None else place.node_id,
            host="" if place is None else place.host,
            port=-1 if place is None else place.port,
        )

    async def join_group(self, request: Any, context: RequestContext) -> Any:
        """JoinGroup 0–5."""
        session_ms = _milliseconds(request.session_timeout)
        rebalance_ms = _milliseconds(getattr(request, "rebalance_timeout", None))
        result: JoinResult = await self._service.join(
            request.group_id,
            Join(
                member_id=request.member_id,
                instance_id=getattr(request, "group_instance_id", None),
                client_id=context.client_id,
                client_host=f"/{context.host}",
                session_ms=session_ms,
                rebalance_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((each.name, each.metadata) for each in request.protocols),
                id_required=context.version >= ID_REQUIRED_VERSION,
            ),
            context.caller,
        )
        return answer(
            request,
            error_code=_code(result.error),
            generation_id=result.generation,
            protocol_name=result.protocol,
            leader=result.leader,
            member_id=result.member_id,
            members=[
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.metadata,
                }
                for member in result.members
            ],
        )

    async def sync_group(self, request: Any, context: RequestContext) -> Any:
        """SyncGroup 0–3."""
        result = await self._service.sync(
            request.group_id,
            Sync(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=getattr(request, "group_instance_id", None),
                assignments=tuple(
                    (each.member_id, each.assignment) for each in request.assignments
                ),
            ),
            context.caller,
        )
        return answer(request, error_code=_code(result.error), assignment=result.assignment)

    async def heartbeat(self, request: Any, context: RequestContext) -> Any:
        """Heartbeat 0–3."""
        error = await self._service.heartbeat(
            request.group_id,
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            context.caller,
        )
        return answer(request, error_code=_code(error))

    async def leave_group(self, request: Any, context: RequestContext) -> Any:
        """LeaveGroup 0–3: of one member, and from version 3 on of several."""
        if hasattr(request, "members"):
            leavers = [
                Leaver(member_id=each.member_id, instance_id=each.group_instance_id)
                for each in request.members
            ]
        else:
            leavers = [Leaver(member_id=request.member_id)]
        try:
            errors = await self._service.leave(request.group_id, leavers, context.caller)
        except Refused as refused:
            return answer(request, error_code=_code(refused.error), members=())
        if not hasattr(request, "members"):
            return answer(request, error_code=_code(errors[0]))
        return answer(
            request,
            error_code=_code(GroupError.NONE),
            members=[
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.instance_id,
                    "error_code": _code(error),
                }
                for leaver, error in zip(leavers, errors, strict=True)
            ],
        )

    async def offset_commit(self, request: Any, context: RequestContext) -> Any:
        """OffsetCommit 2–7. The leader's epoch that a client adds is not stored."""
        wanted, codes = wanted_progress(request.topics)
        try:
            failed = await self._service.commit(
                request.group_id,
                request.member_id,
                getattr(request, "group_instance_id", None),
                request.generation_id_or_member_epoch,
                wanted,
                context.caller,
            )
        except Refused as refused:
            codes |= dict.fromkeys(wanted, _code(refused.error))
        else:
            codes |= {place: storage_code(error) for place, error in failed.items()}
        return answer(
            request,
            topics=told_by_place(request.topics, codes),
        )

    async def offset_fetch(self, request: Any, context: RequestContext) -> Any:
        """OffsetFetch 1–7; without topics, from version 2 on, all that is committed."""
        wanted: list[Place] | None = None
        if request.topics is not None:
            wanted = [
                (topic.name, number)
                for topic in request.topics
                for number in topic.partition_indexes
            ]
        error = ErrorCode.none
        found: Mapping[Place, Progress | SemelError]
        stable = getattr(request, "require_stable", False)
        try:
            found = await self._service.fetch(
                request.group_id, wanted, context.caller, stable=stable
            )
        except Refused as refused:
            error = _code(refused.error)
            found = {}
        if any(
            _passes(each) and not (stable and isinstance(each, Throttled))
            for each in found.values()
        ):
            # Of a partition, consumers take most errors as final.
            error, found = ErrorCode.coordinator_load_in_progress, {}
        places = found if wanted is None else wanted
        return answer(
            request,
            error_code=error,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        _fetched(number, found.get((topic, number), Progress(-1, b"")), error)
                        for number in numbers
                    ],
                }
                for topic, numbers in _by_topic(places).items()
            ],
        )

    async def describe_groups(self, request: Any, context: RequestContext) -> Any:
        """DescribeGroups 0–4."""
        groups = [await self._describe(name, context.caller) for name in request.groups]
        return answer(request, groups=groups)

    async def _describe(self, name: str, caller: Caller | None) -> dict[str, Any]:
        try:
            found = await self._service.describe(name, caller)
        except Refused as refused:
            return {
                "error_code": _code(refused.error),
                "group_id": name,
                "group_state": "",
                "protocol_type": "",
                "protocol_data": "",
                "members": (),
            }
        return {
            "error_code": ErrorCode.none,
            "group_id": name,
            "group_state": found.state.value,
            "protocol_type": found.protocol_type,
            "protocol_data": found.protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in found.members
            ],
        }

    async def list_groups(self, request: Any, context: RequestContext) -> Any:
        """ListGroups 0–2: all of the cluster, whichever gateway is asked."""
        try:
            groups = await self._service.names(context.caller)
        except Refused as refused:
            return answer(request, error_code=_code(refused.error), groups=())
        return answer(
            request,
            error_code=ErrorCode.none,
            groups=[
                {"group_id": name, "protocol_type": protocol_type} for name, protocol_type in groups
            ],
        )

    async def delete_groups(self, request: Any, context: RequestContext) -> Any:
        """DeleteGroups 0–1."""
        return answer(
            request,
            results=[
                {
                    "group_id": name,
                    "error_code": _code(await self._service.delete(name, context.caller)),
                }
                for name in request.groups_names
            ],
        )

    async def offset_delete(self, request: Any, context: RequestContext) -> Any:
        """OffsetDelete 0."""
        wanted = {
            (topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        }
        error = ErrorCode.none
        codes: dict[Place, ErrorCode] = {}
        try:
            failed = await self._service.forget_offsets(request.group_id, wanted, context.caller)
        except Refused as refused:
            error = _code(refused.error)
            codes = dict.fromkeys(wanted, error)
        else:
            codes = {
                place: _code(found) if isinstance(found, GroupError) else storage_code(found)
                for place, found in failed.items()
            }
        return answer(
            request,
            error_code=error,
            topics=told_by_place(request.topics, codes),
        )


def _code(error: GroupError) -> ErrorCode:
    return ErrorCode(int(error))


def _milliseconds(duration: Any) -> int:
    """The milliseconds of kio's duration; -1 for one that the version lacks."""
    return -1 if duration is None else round(duration.total_seconds() * 1000)


def _fetched(number: int, found: Progress | SemelError, error: ErrorCode) -> dict[str, Any]:
    progress = found if isinstance(found, Progress) else Progress(-1, b"")
    if isinstance(found, Throttled):
        error = ErrorCode.unstable_offset_commit
    elif isinstance(found, SemelError):
        error = storage_code(found)
    return {
        "partition_index": number,
        "committed_offset": progress.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH,
        "metadata": progress.metadata.decode(errors="replace"),
        "error_code": error,
    }


def _passes(found: Progress | SemelError) -> bool:
    """Whether it is an error that ends by itself."""
    return isinstance(found, SemelError) and found.retriable


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in places:
        found.setdefault(topic, []).append(number)
    return found
