"""One client's session: its connection to the cluster, shared by both halves of the API.

Invariants
1. Producers, readers and consumers of a session are closed before its connections.
2. In a forked child every call raises Closed, except that closing the session is a no-op.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from semel.client.admin.calls import AdminCore
from semel.client.client_file import chosen
from semel.client.config import (
    DEFAULT_BOOTSTRAP,
    ClientConfig,
    ProducerConfig,
    build,
    parse_bootstrap,
)
from semel.client.login import LoggedIn
from semel.client.producer.intake import Intake
from semel.client.producer.memory import ProducerMemory
from semel.client.producer.producer import ProducerCore
from semel.client.reading.pulling import Puller
from semel.client.reading.untraced import UNTRACED, Untraced
from semel.client.transactions.commit import TransactionCore
from semel.client.transactions.staging import StageCore, StagerIdentity
from semel.client.transport.cluster import Cluster
from semel.client.transport.routes_file import routes_directory
from semel.client.transport.runtime import Runtime, shared_runtime
from semel.protos import compat
from semel.protos.errors import Closed, InvalidRequest, SemelError, TimedOut
from semel.protos.security.credentials import Security

if TYPE_CHECKING:
    from semel.client.tracing.tracing import Tracing

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Core = TypeVar("_Core", bound=ProducerCore)


class Closable(Protocol):
    """A producer, reader or consumer of the session."""

    async def shut(self) -> None:
        """Ends it as gently as the time allows. Runs on the I/O thread."""


class Session:
    """One client's connection to a cluster."""

    def __init__(self, bootstrap: str | None, options: Mapping[str, Any]) -> None:
        if options.get("security") is None and options.get("login") is None:
            file = chosen(os.environ)
            bootstrap = bootstrap or file.bootstrap or None
            options = {**options, "security": file.security, "login": file.login}
        if bootstrap is None:
            bootstrap = os.environ.get("SEMEL_BOOTSTRAP") or DEFAULT_BOOTSTRAP
        controllers = parse_bootstrap(bootstrap)
        self.bootstrap = bootstrap
        self.config = build(ClientConfig, options)
        self._tracing = _tracing(self.config)
        self._logged_in: LoggedIn | None = None
        if self.config.login is not None:
            self._logged_in = LoggedIn(self.config.login)
            self.config = replace(self.config, security=Security(self._logged_in), login=None)
        self.pid = os.getpid()
        self.runtime: Runtime = shared_runtime()
        directory = routes_directory(os.environ) if self.config.keep_routes else None
        self.cluster = Cluster(controllers, self.config, directory)
        self.admin = AdminCore(self.cluster)
        self.transactions = TransactionCore(self.cluster)
        self.producer_memory = ProducerMemory(self.config.buffer_bytes)
        self.closed = False
        self._members: dict[Closable, None] = {}
        """In the order in which they were opened, which is the order of closing."""
        _sessions.add(self)

    async def open(self) -> None:
        """Connects, and logs in before if that is how the client proves who it is. Raises
        Unavailable, Unauthenticated."""
        try:
            if self._logged_in is not None:
                await self._logged_in.start(self.config.connect_timeout_ms / 1000)
                self.cluster.spawn(self._logged_in.run(), "semel-login")
            await self.cluster.start()
        except BaseException:
            self.closed = True
            await self.cluster.close()
            raise

    def check(self) -> None:
        """Raises Closed if the session is."""
        if self.closed:
            if os.getpid() != self.pid:
                raise Closed(f"this client belongs to process {self.pid}, which forked")
            raise Closed("the client is closed")

    def run(
        self,
        coroutine: Coroutine[Any, Any, _Result],
        timeout: float | None = None,
        late: str = "no result",
    ) -> _Result:
        """Blocks for a coroutine's result, which the I/O thread computes.

        Raises Closed, and TimedOut after `timeout` seconds, whose text begins with `late`.
        """
        try:
            self.check()
        except Closed:
            coroutine.close()
            raise
        return self.runtime.run(coroutine, timeout, late)

    async def await_run(
        self,
        coroutine: Coroutine[Any, Any, _Result],
        timeout: float | None = None,
        late: str = "no result",
    ) -> _Result:
        """Awaits a coroutine's result on the caller's loop; otherwise like `run`."""
        try:
            self.check()
        except Closed:
            coroutine.close()
            raise
        if timeout is None:
            return await self.runtime.await_run(coroutine)
        entered = False
        try:
            async with compat.timeout(timeout) as limit:
                entered = True
                return await self.runtime.await_run(coroutine)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(f"{late} within {timeout:g} s") from None
        finally:
            if not entered:  # outside of a task, for example while the caller's loop is torn down
                coroutine.close()

    def join(self, member: Closable) -> None:
        self._members[member] = None

    def leave(self, member: Closable) -> None:
        self._members.pop(member, None)

    async def close(self) -> list[SemelError]:
        """Ends all members, then the connections. Returns the errors of messages not stored.

        Runs on the I/O thread."""
        failures: list[SemelError] = []
        members = list(self._members)
        self._members.clear()
        self.closed = True
        timeout = self.config.close_timeout_ms / 1000
        try:
            async with compat.timeout(timeout):
                results = await asyncio.gather(
                    *(member.shut() for member in members), return_exceptions=True
                )
            failures += [result for result in results if isinstance(result, SemelError)]
            for result in results:
                if isinstance(result, BaseException) and not isinstance(result, SemelError):
                    logger.warning("close was not clean error=%r", result)
        except TimeoutError:
            failures.append(TimedOut(f"not all stored within {timeout:g} s of closing"))
        finally:
            await self.cluster.close()
        return failures

    def new_producer(
        self, name: str | None, options: Mapping[str, Any], *, blocking: bool
    ) -> ProducerCore:
        """Returns the core of a new producer, with its intake. Raises InvalidRequest."""
        self.check()
        config = build(ProducerConfig, options)
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidRequest(f"a producer's name must be text, not {name!r}")
        if config.source_positions and not name:
            raise InvalidRequest("source_positions needs a named producer: producer(name, ...)")
        return self._with_intake(
            config,
            lambda intake: ProducerCore(self.cluster, name or "", config, intake),
            blocking,
            name or "",
        )

    def new_stage(
        self,
        config: ProducerConfig,
        transaction_id: str,
        epoch: int,
        *,
        writer: int,
        ttl_ms: int,
        blocking: bool,
    ) -> StageCore:
        """Returns the core of a producer that stages messages for a transaction."""
        self.check()
        config = replace(config, source_positions=False)
        identity = StagerIdentity(self.cluster, transaction_id, epoch, writer, ttl_ms)
        return self._with_intake(
            config, lambda intake: StageCore(self.cluster, config, intake, identity), blocking
        )

    def receiving(
        self, puller: Puller, group: str = "", client_id: Callable[[], str] = str
    ) -> Untraced:
        """Returns what a reader or consumer tells about its work."""
        if self._tracing is None:
            return UNTRACED
        return self._tracing.receiving(puller, group, client_id)

    def _with_intake(
        self,
        config: ProducerConfig,
        make: Callable[[Intake], _Core],
        blocking: bool,
        name: str = "",
    ) -> _Core:
        cores: list[_Core] = []

        def wake() -> None:
            self.runtime.call_soon(cores[0].pump)

        def open_topic(topic: str) -> None:
            self.run(cores[0].open_topic(topic))

        self.producer_memory.admit(config.buffer_bytes)
        make_intake = Intake if self._tracing is None else partial(self._tracing.intake, name)
        intake = make_intake(
            config,
            wake=wake,
            open_topic=open_topic if blocking else None,
            memory=self.producer_memory,
        )
        core = make(intake)
        cores.append(core)
        self.runtime.call_soon(core.start)
        return core


def _tracing(config: ClientConfig) -> Tracing | None:
    """Returns the client's tracing, or None. Imports OpenTelemetry only if it is wanted. Raises
    InvalidRequest if that is not installed."""
    if config.tracing is False:
        return None
    try:
        from semel.client.tracing.tracing import Tracing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise InvalidRequest(
            "tracing needs OpenTelemetry's API: pip install 'semel[otel]'"
        ) from None
    return Tracing(config.tracing)


def consumer_arguments(group: object, topics: list[str] | str) -> list[str]:
    """Checks the arguments and returns the topics as a list. Raises InvalidRequest."""
    names = [topics] if isinstance(topics, str) else list(topics)
    if not isinstance(group, str) or not group:
        raise InvalidRequest(f"group must be a name, not {group!r}")
    if not names:
        raise InvalidRequest("a consumer needs a topic")
    return names


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.closed = True


os.register_at_fork(after_in_child=_after_fork)
