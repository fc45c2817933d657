"""The replicated state: the map, and the requests that were answered. Pure.

How it works. Every committed entry is one command. `Table`, the same code as in the other stores,
checks and applies a transaction; the result is kept under the number of its request until the
requester says that it knows the result. So a command that enters the log twice, because its
requester repeated it after a silence, is applied once, and its second answer equals the first.
A barrier changes nothing: it marks a place in the log.

Invariants
1. The state is a function of the commands in their order: equal on every controller at an index.
2. A request (controller, incarnation, sequence) is applied at most once. A request of an older
   incarnation, or below what its requester has called resolved, is not applied at all.
3. A transaction whose check fails changes nothing except that its answer is kept.

Not here: bytes on disk (`dump.py`), the order of commands (`consensus.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from semel.controller.store.base import Transaction, VersionConflict, Versioned
from semel.controller.store.memory import Table
from semel.protos.errors import InvalidRequest, MessageTooLarge
from semel.protos.v1.metadata_store_pb2 import ExpectedVersion, StoreCommand, StoreTransaction

COMMAND_BYTES_MAX: Final = 3 << 20
"""Large enough for a topic of 65,536 queues; a message of entries stays below gRPC's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a transaction."""

    revision: int = 0
    """0 when a check failed."""
    conflict: str = ""
    """Which check failed, and how; empty when none did."""


@dataclass(slots=True, kw_only=True)
class Session:
    """The requests of one controller since its newest start."""

    incarnation: int
    resolved_below: int = 0
    results: dict[int, Result] = field(default_factory=dict)
    """Results by sequence; none is below `resolved_below`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The effect of one command, for a copy that follows the map."""

    revision: int
    """The map's revision after the command."""
    puts: Mapping[str, Versioned]
    deletes: frozenset[str]
    controller_id: int = 0
    incarnation: int = 0
    sequence: int = 0
    result: Result | None = None
    """The transaction's answer; None for a barrier and for a request no longer answered."""
    barrier: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A copy of the whole state, which later commands do not change."""

    revision: int
    entries: Mapping[str, Versioned]
    sessions: Mapping[int, Session]


class Machine:
    """The replicated state. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self.table = Table()
        self.sessions: dict[int, Session] = {}

    def apply(self, command: bytes) -> Applied:
        """Applies one command. Raises InvalidRequest for an unknown one: the process must end."""
        try:
            decoded = StoreCommand.FromString(command)
        except DecodeError as error:
            raise InvalidRequest(f"an entry of {len(command)} bytes is no command") from error
        match decoded.WhichOneof("kind"):
            case "transaction":
                return self._transact(decoded.transaction)
            case "barrier":
                return self._applied(barrier=decoded.barrier)
            case _:
                raise InvalidRequest("an entry holds a command that this program does not know")

    def state(self) -> State:
        """A copy for a dump or a follower, at the cost of one shallow copy of the map."""
        sessions = {
            controller_id: Session(
                incarnation=session.incarnation,
                resolved_below=session.resolved_below,
                results=dict(session.results),
            )
            for controller_id, session in self.sessions.items()
        }
        return State(
            revision=self.table.revision, entries=dict(self.table.entries), sessions=sessions
        )

    def restore(self, state: State) -> None:
        """Replaces the whole state by `state`, which this machine then owns."""
        self.table = Table()
        self.table.revision = state.revision
        self.table.entries = dict(state.entries)
        self.sessions = dict(state.sessions)

    def _transact(self, request: StoreTransaction) -> Applied:
        session = self.sessions.get(request.controller_id)
        if session is None or session.incarnation < request.incarnation:
            session = Session(incarnation=request.incarnation)
            self.sessions[request.controller_id] = session
        if request.incarnation < session.incarnation or request.sequence < session.resolved_below:
            return self._applied()
        session.resolved_below = max(session.resolved_below, request.resolved_below)
        for sequence in [one for one in session.results if one < session.resolved_below]:
            del session.results[sequence]
        known = session.results.get(request.sequence)
        if known is not None:
            return self._applied(request, result=known)
        transaction = transaction_of(request)
        try:
            self.table.check(transaction)
        except VersionConflict as error:
            result = Result(conflict=str(error))
            session.results[request.sequence] = result
            return self._applied(request, result=result)
        revision = self.table.apply(transaction)
        result = Result(revision=revision)
        session.results[request.sequence] = result
        return self._applied(
            request,
            result=result,
            puts={key: self.table.entries[key] for key in transaction.puts},
            deletes=transaction.deletes,
        )

    def _applied(
        self,
        request: StoreTransaction | None = None,
        *,
        result: Result | None = None,
        puts: Mapping[str, Versioned] | None = None,
        deletes: Iterable[str] = (),
        barrier: bytes = b"",
    ) -> Applied:
        return Applied(
            revision=self.table.revision,
            puts=puts or {},
            deletes=frozenset(deletes),
            controller_id=0 if request is None else request.controller_id,
            incarnation=0 if request is None else request.incarnation,
            sequence=0 if request is None else request.sequence,
            result=result,
            barrier=barrier,
        )


def transaction_of(request: StoreTransaction) -> Transaction:
    """The transaction that a request asks for."""
    return Transaction(
        checks={
            check.key: check.version if check.HasField("version") else None
            for check in request.checks
        },
        puts=dict(request.puts),
        deletes=frozenset(request.deletes),
        revision_min=request.revision_min,
    )


def transaction_command(
    transaction: Transaction,
    *,
    controller_id: int,
    incarnation: int,
    sequence: int,
    resolved_below: int,
) -> bytes:
    """The command that requests `transaction`. Raises MessageTooLarge."""
    assert not transaction.puts.keys() & transaction.deletes
    request = StoreTransaction(
        controller_id=controller_id,
        incarnation=incarnation,
        sequence=sequence,
        resolved_below=resolved_below,
        checks=[
            ExpectedVersion(key=key, version=version) for key, version in transaction.checks.items()
        ],
        puts={key: bytes(value) for key, value in transaction.puts.items()},
        deletes=sorted(transaction.deletes),
        revision_min=transaction.revision_min,
    )
    command = StoreCommand(transaction=request).SerializeToString()
    if len(command) > COMMAND_BYTES_MAX:
        raise MessageTooLarge(
            f"a change of the metadata has {len(command)} bytes; {COMMAND_BYTES_MAX} are the limit",
            limit_bytes=COMMAND_BYTES_MAX,
        )
    return command


def barrier_command(nonce: bytes) -> bytes:
    """The command that marks a place in the log; its `Applied` carries `nonce`."""
    assert nonce
    return StoreCommand(barrier=nonce).SerializeToString()
