"""The check of each call and each stream's messages against the rules.

How it works. `CallGuard` stands before the handlers of a server (`ServerInterceptor` asks it once
for each method). It authenticates the caller, finds in the request what it names
(`declared.py`), decides (`rules.py`), and leaves out of the reply what the caller may not see. The
caller of a call is in `CALLER` while its handler runs, and in everything that the handler starts.
A stream whose messages need rights has a `Gate`: each right is decided once and then remembered, so
that a message costs a look into a set. When rules change, `Enforcer.take` asks again for all that
open gates let through, and ends the streams that have lost something.

Invariants
1. No handler sees a request that is denied, and nothing is looked up for it but names.
2. A topic that the caller may not describe is refused with the error for a topic that does not
   exist, whether it exists or not.
3. A gate lets nothing through that the newest rules deny, from the moment `take` returns.

Not here: who the caller is (`Authenticate`, given), the rules' way to this node, the end of a
stream whose caller's certificate expires (`rpc.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from semel.protos.errors import (
    PermissionDenied,
    RetriableError,
    SemelError,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)
from semel.protos.security.audited import is_audited
from semel.protos.security.declared import Declared, Name, Need, declared
from semel.protos.security.rules import (
    Action,
    Kind,
    NarrowedRights,
    Resource,
    Rights,
    RuleBook,
    Scope,
    Unlimited,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One caller, as it was proved."""

    principal: str
    """`user:NAME`; `broker:NUMBER` or `controller:NUMBER` for a node."""
    node: str = ""
    """`broker` or `controller` for a program of the cluster itself."""
    administrator: bool = False
    """Its certificate is an administrator's: the rules do not limit it."""
    scopes: tuple[Scope, ...] | None = None
    """What its login is narrowed to; None for no limit."""
    expires_s: float | None = None
    """Wall-clock time at which its certificate expires."""
    login: str = ""
    """How it has proved who it is: `certificate`, `token`, `oidc` or `password`; empty for a
    node."""
    address: str = ""
    """Where it called from."""


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""The caller of the call that runs; None while security is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call, or a message of a stream, that was not let through."""

    principal: str
    """Empty for a caller that did not prove who it is."""
    address: str
    method: str
    action: str
    resource: str
    reason: str


Authenticate = Callable[[Any], Awaitable[Caller]]
"""Finds who makes a call, from its gRPC context. Raises Unauthenticated."""


class Names(Protocol):
    """Names of resources that messages name by a number."""

    def name_of(self, kind: Kind, number: int) -> str | None:
        """The name; None if there is no such resource."""
        ...


def unknown_topic(name: Name) -> UnknownTopic:
    """The error for a topic that does not exist, or that the caller may not describe."""
    if isinstance(name, int):
        return UnknownTopic(f"there is no topic {name:#x} any more")
    return UnknownTopic(f"there is no topic {name!r}. Create it, or check the spelling")


class Enforcer:
    """The decisions of one node. Lives on its event loop."""

    def __init__(
        self,
        names: Names,
        on_refused: Callable[[Refusal], None],
        on_done: Callable[[Caller, str, Message], None] = lambda caller, method, request: None,
    ) -> None:
        """`on_done` gets each change by an operator that was made, and who made it."""
        self.on_done = on_done
        self._names = names
        self._on_refused = on_refused
        self._book: RuleBook | None = None
        """The rules; None while they are not known."""
        self._unknown = "this node has not heard yet who may do what"
        self._gates: dict[Gate, None] = {}
        """Open gates, in the order in which they came."""

    def take(self, book: RuleBook) -> None:
        """From now on `book` decides; streams that it takes a right from end."""
        self._book = book
        for gate in list(self._gates):
            gate.check_again()

    def forget(self, why: str) -> None:
        """From now on only administrators are let in, until rules come; all streams of others end.
        `why` is told to callers."""
        self._book, self._unknown = None, why
        for gate in list(self._gates):
            gate.forget()

    @property
    def book(self) -> RuleBook:
        """The rules. Raises Unavailable while none are known."""
        if self._book is None:
            raise Unavailable(f"{self._unknown}: ask again, or another node")
        return self._book

    def rights_of(self, caller: Caller) -> Rights:
        """What `caller` may do now. Raises Unavailable while no rules are known."""
        rights: Rights
        if caller.administrator:
            rights = Unlimited(f"{caller.principal} is an administrator")
        else:
            rights = self.book.rights_of(caller.principal)
        return rights if caller.scopes is None else NarrowedRights(rights, caller.scopes)

    def check_call(self, what: Declared, request: Message, caller: Caller) -> None:
        """Checks a call. Raises PermissionDenied, UnknownTopic, InvalidRequest."""
        if caller.node in what.nodes:
            return
        if what.for_nodes_only:
            self._refuse(caller, what.method, "", "", "only nodes of the cluster may call it")
            raise PermissionDenied(f"{what.method} is for nodes of the cluster only")
        if what.rights:
            self.check_needs(what.method, what.needs(request), caller)

    def check_needs(self, method: str, needs: Iterable[Need], caller: Caller) -> None:
        """Checks all of `needs`. Raises PermissionDenied, UnknownTopic."""
        rights = self.rights_of(caller)
        for action, kind, named in needs:
            name = self._names.name_of(kind, named) if isinstance(named, int) else named
            if name is None:
                if kind is Kind.TOPIC:
                    raise unknown_topic(named)
                continue  # there is nothing that the call could do anything to
            resource = Resource(kind, name)
            decision = rights.decide(action, resource)
            if decision.allowed:
                continue
            self._refuse(caller, method, action.value, str(resource), decision.reason)
            hidden = (
                kind is Kind.TOPIC
                and action is not Action.CREATE
                and not rights.decide(Action.DESCRIBE, resource).allowed
            )
            if hidden:
                raise unknown_topic(named)
            raise PermissionDenied(
                f"{caller.principal} may not {action.value} {resource}: ask an administrator for"
                f" `allow {caller.principal} {action.value} {resource}`",
                resource=str(resource),
            )

    def told(self, what: Declared, reply: Any, caller: Caller) -> Any:
        """`reply` without what `caller` may not describe."""
        if not what.shows or caller.node in what.nodes:
            return reply
        rights = self.rights_of(caller)

        def visible(kind: Kind, named: Name) -> bool:
            name = self._names.name_of(kind, named) if isinstance(named, int) else named
            return name is not None and rights.decide(Action.DESCRIBE, Resource(kind, name)).allowed

        return what.told(reply, visible)

    def name_of(self, kind: Kind, number: int) -> str | None:
        """The name of what a message names by a number; None if there is no such thing."""
        return self._names.name_of(kind, number)

    @contextlib.contextmanager
    def gate(self, method: str, on_ended: Callable[[SemelError], None]) -> Iterator[Gate]:
        """The gate of a stream of the running call's caller; `on_ended` ends the stream."""
        caller = CALLER.get()
        assert caller is not None, "a stream came past the guard"
        gate = Gate(self, method, caller, on_ended)
        self._gates[gate] = None
        try:
            yield gate
        finally:
            del self._gates[gate]

    def on_unauthenticated(self, method: str, address: str, reason: str) -> None:
        """Notes a call of somebody who did not prove who they are."""
        self._on_refused(
            Refusal(
                principal="", address=address, method=method, action="", resource="", reason=reason
            )
        )

    def _refuse(self, caller: Caller, method: str, action: str, resource: str, reason: str) -> None:
        self._on_refused(
            Refusal(
                principal=caller.principal,
                address=caller.address,
                method=method,
                action=action,
                resource=resource,
                reason=reason,
            )
        )


class Gate:
    """What the messages of one stream may do."""

    def __init__(
        self,
        enforcer: Enforcer,
        method: str,
        caller: Caller,
        on_ended: Callable[[SemelError], None],
    ) -> None:
        self._enforcer = enforcer
        self._method = method
        self._caller = caller
        self._on_ended = on_ended
        self._passed: set[Need] = set()

    def admit(self, needs: Iterable[Need]) -> None:
        """Lets a message with these needs through. Raises PermissionDenied, UnknownTopic."""
        for need in needs:
            if need not in self._passed:
                self._enforcer.check_needs(self._method, (need,), self._caller)
                self._passed.add(need)

    def admit_producer(self, producer_id: int) -> None:
        """Lets a message in the name of a producer through. Raises PermissionDenied.

        The name is looked up each time: an id gets one when its producer is fenced first.
        """
        name = self._enforcer.name_of(Kind.PRODUCER, producer_id)
        if name is not None:
            self.admit((Need(Action.OWN_NAME, Kind.PRODUCER, name),))

    def check_again(self) -> None:
        """Ends the stream if something that it was let through with is denied by now."""
        try:
            self._enforcer.check_needs(self._method, self._passed, self._caller)
        except RetriableError:
            self._passed.clear()  # a name is not known now: each is decided again when it comes
        except SemelError as error:
            self._passed.clear()
            self._on_ended(error)

    def forget(self) -> None:
        """Ends the stream, unless it is an administrator's: the rules are not known any more."""
        try:
            self._enforcer.rights_of(self._caller)
        except Unavailable as error:
            self._passed.clear()
            self._on_ended(error)


Single = Callable[[Any, Any], Awaitable[Any]]
_ADDRESS_MAX: Final = 200


class CallGuard:
    """What stands before the handlers of one server."""

    def __init__(
        self,
        enforcer: Enforcer,
        authenticate: Authenticate,
        decides: Callable[[], bool] = lambda: True,
    ) -> None:
        """`decides` is False while the node knows no rules and tells callers whom to ask."""
        self._enforcer = enforcer
        self._authenticate = authenticate
        self._decides = decides

    def single(self, method: str, behavior: Single) -> Single:
        """`behavior`, which answers one request with one reply, behind the check."""
        what, audited = declared(method), is_audited(method)
        if what.public:
            return behavior

        async def guarded(request: Any, context: Any) -> Any:
            caller = await self._caller(method, context)
            if self._decides():
                self._enforcer.check_call(what, request, caller)
                reply = self._enforcer.told(what, await behavior(request, context), caller)
            else:
                reply = await behavior(request, context)
            if audited and not caller.node:
                self._enforcer.on_done(caller, method, request)
            return reply

        return guarded

    def replies(self, method: str, behavior: Callable[[Any, Any], Any]) -> Single:
        """`behavior`, which answers one request with a stream, behind the check."""
        what = declared(method)
        if what.public:
            return behavior

        async def guarded(request: Any, context: Any) -> None:
            caller = await self._caller(method, context)
            if self._decides():
                self._enforcer.check_call(what, request, caller)
            running = behavior(request, context)
            if not isinstance(running, AsyncGenerator):
                assert not what.shows, f"{method} writes replies past the guard"
                await running
                return
            async with aclosing(running):
                async for reply in running:
                    await context.write(self._enforcer.told(what, reply, caller))

        return guarded

    def requests(self, method: str, behavior: Callable[[Any, Any], Any]) -> Single:
        """`behavior`, which reads a stream of requests; it asks its `Gate` about each of them."""
        what = declared(method)
        assert what.each_message or what.for_nodes_only, f"{method} checks no message"

        async def guarded(request: Any, context: Any) -> Any:
            caller = await self._caller(method, context)
            if what.for_nodes_only:
                self._enforcer.check_call(what, request, caller)
            running = behavior(request, context)
            if not isinstance(running, AsyncGenerator):
                return await running
            async with aclosing(running):
                async for reply in running:
                    await context.write(reply)
            return None

        return guarded

    async def _caller(self, method: str, context: Any) -> Caller:
        try:
            caller = await self._authenticate(context)
        except Unauthenticated as error:
            address = str(context.peer())[:_ADDRESS_MAX]
            self._enforcer.on_unauthenticated(method, address, error.message)
            raise
        CALLER.set(caller)
        return caller
