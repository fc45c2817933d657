"""Options of clients, producers and readers, and the retry policy of consumers.

Each is a frozen dataclass whose fields document default, unit and reason, validated at
construction. `build` turns keyword arguments into one of them and names the nearest known option
for a wrong one.

Not here: options of consumers (`consumer/consumer_config.py`), `SEMEL_BOOTSTRAP` (`session.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from semel.client.login import Login
from semel.protos.addresses import Address
from semel.protos.batch import BATCH_BYTES_DEFAULT, HEADER_BYTES, Codec
from semel.protos.errors import InvalidRequest
from semel.protos.levels import LEVEL_MAX
from semel.protos.security.credentials import Security

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:7070"
RETRY_STEP_MS_MAX: Final = 7 * 24 * 3600 * 1000
CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

_Options = TypeVar("_Options")


def build(cls: type[_Options], options: Mapping[str, Any]) -> _Options:
    """`cls(**options)`. Raises InvalidRequest for an unknown option or a value out of range."""
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
            raise InvalidRequest(f"unknown option {name!r}{hint}")
    return cls(**options)


def require(condition: bool, message: str) -> None:
    """Raises InvalidRequest with `message` unless `condition` holds."""
    if not condition:
        raise InvalidRequest(message)


def whole(name: str, value: object, low: int, high: int) -> None:
    """Raises InvalidRequest unless `value` is a whole number in `[low, high]`."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(ok, f"{name} must be a whole number from {low} to {high}, not {value!r}")


def parse_bootstrap(bootstrap: str) -> tuple[str, ...]:
    """The addresses of "HOST:PORT,HOST:PORT". Raises InvalidRequest."""
    addresses = tuple(part.strip() for part in bootstrap.split(",") if part.strip())
    require(bool(addresses), "bootstrap is empty; give HOST:PORT of a controller")
    for address in addresses:
        Address.parse(address, what="bootstrap address", port_min=1)
    return addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Options of `connect` and `connect_async`."""

    connect_timeout_ms: int = 5_000
    """Milliseconds for which `connect` asks the controllers before it gives up."""
    request_timeout_ms: int = 15_000
    """Milliseconds for one administrative call, retries and changes of master included."""
    close_timeout_ms: int = 10_000
    """Milliseconds for leaving the context: flushing producers, leaving groups, closing."""
    ping_ms: int = 200
    """Milliseconds between the pings of a produce stream with messages in flight."""
    silence_ms: int = 600
    """Milliseconds of silence after which a stream is given up, and all replicas are asked for the
    master."""
    buffer_bytes: int = 128 << 20
    """Most bytes of unacknowledged messages of all producers together, or twice the largest
    `buffer_bytes` of one of them. Each may hold as much as is still free, so at most half of it.
    At the limit the producer's `buffer_full` decides."""
    shared_memory: bool = True
    """Lets a broker on the same machine, and of the same user, write fetched batches into memory of
    this process instead of sending them; up to some 32 MiB for each busy stream."""
    direct_streams: bool = True
    """Sends and fetches on sockets beside gRPC where a broker can be reached so: an awaited message
    takes a fifth less time. Other brokers are reached by gRPC alone."""
    keep_routes: bool = True
    """Keeps the routes in a file of this user, for clients that start while no controller answers.
    `SEMEL_ROUTES_DIRECTORY` names the directory, by default `~/.cache/semel`."""
    security: Security | None = None
    """The client's CA, certificate and key, for a cluster with TLS: `Security.read(directory)`. By
    default what the file has that `SEMEL_CLIENT_CONFIG` or `SEMEL_PROFILE` names, or no TLS."""
    login: Login | None = None
    """In place of a certificate: how the client logs in, with a token or a password. It then has a
    certificate for a short time, which it renews by itself."""
    tracing: bool | TracerProvider = False
    """Makes spans of OpenTelemetry for what is sent, received and committed, and has messages carry
    their trace context: True with the global tracer provider, or the provider to use. Needs the
    extra `otel`. By default off, which costs nothing."""
    level_max: int = LEVEL_MAX
    """The highest feature level that the client uses, by default the highest it knows. With a lower
    one it behaves as an older program would, to rehearse an upgrade."""

    def __post_init__(self) -> None:
        whole("connect_timeout_ms", self.connect_timeout_ms, 1, 600_000)
        whole("request_timeout_ms", self.request_timeout_ms, 1, 3_600_000)
        whole("close_timeout_ms", self.close_timeout_ms, 1, 3_600_000)
        whole("ping_ms", self.ping_ms, 10, 60_000)
        whole("silence_ms", self.silence_ms, 2 * self.ping_ms, 600_000)
        whole("buffer_bytes", self.buffer_bytes, 1, 1 << 40)
        whole("level_max", self.level_max, 0, LEVEL_MAX)
        require(
            self.security is None or isinstance(self.security, Security),
            f"security must be a Security, not {self.security!r}",
        )
        require(
            self.login is None or isinstance(self.login, Login),
            f"login must be a Login, not {type(self.login).__name__}",
        )
        require(
            isinstance(self.tracing, bool) or hasattr(self.tracing, "get_tracer"),
            f"tracing must be True, False or a TracerProvider, not {self.tracing!r}",
        )
        require(
            self.login is None or self.security is None,
            "a client has a certificate (security) or logs in (login), not both",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Options of `client.producer`."""

    linger_ms: float = 5
    """Milliseconds for which messages gather while an earlier batch is in flight; without one they
    go out at once."""
    batch_bytes: int = 1 << 20
    """A batch is closed at this size, uncompressed. Messages gather only while earlier ones are in
    flight, so batches reach it under load alone. Large batches help readers most: each batch costs
    them the same."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the bodies. Compression costs the sender, saves network and disk."""
    buffer_bytes: int = 64 << 20
    """Most bytes of unacknowledged messages; at the limit `buffer_full` decides. The client has
    another limit, for all its producers."""
    buffer_full: Literal["block", "raise"] = "block"
    """Wait for room (asyncio: `await producer.drain()`), or raise BufferFull."""
    max_in_flight: int = 64
    """Most unanswered batches per queue; 64 is also the number that brokers remember."""
    max_in_flight_bytes: int = 8 << 20
    """Most unanswered bytes per broker group: more only adds latency."""
    delivery_timeout_ms: int = 120_000
    """Milliseconds after which a message's future fails with TimedOut, whatever its fate."""
    source_positions: bool = False
    """Sequences are the caller's own rising numbers, given as `position` (named producers only)."""
    after_expiry: Literal["raise", "restart"] = "raise"
    """The reaction of a named producer that was away until a queue forgot what it stored (by
    default after seven idle days): raise DedupStateExpired, or begin anew as if nothing had been
    stored."""

    def __post_init__(self) -> None:
        ok = isinstance(self.linger_ms, (int, float)) and 0 <= self.linger_ms <= 60_000
        require(ok, f"linger_ms must be from 0 to 60000, not {self.linger_ms!r}")
        whole("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_DEFAULT - HEADER_BYTES)
        require(
            self.compression in CODECS,
            f"compression must be one of {', '.join(CODECS)}, not {self.compression!r}",
        )
        whole("buffer_bytes", self.buffer_bytes, 1, 1 << 40)
        require(
            self.buffer_full in ("block", "raise"),
            f"buffer_full must be 'block' or 'raise', not {self.buffer_full!r}",
        )
        whole("max_in_flight", self.max_in_flight, 1, 64)
        whole("max_in_flight_bytes", self.max_in_flight_bytes, 1, 1 << 30)
        whole("delivery_timeout_ms", self.delivery_timeout_ms, 1, 86_400_000)
        require(isinstance(self.source_positions, bool), "source_positions must be True or False")
        require(
            self.after_expiry in ("raise", "restart"),
            f"after_expiry must be 'raise' or 'restart', not {self.after_expiry!r}",
        )

    @property
    def codec(self) -> Codec:
        return CODECS[self.compression]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The handling of messages that a consumer could not process: its option `retry`.

    All members of a group should have the same one.
    """

    steps_ms: tuple[int, ...] = (1_000, 10_000, 60_000)
    """Milliseconds before the second, third, … attempt; after the last one a message is a dead
    letter. Each step is a topic of its own, so that a long wait does not delay a short one."""
    dead_letter: str = ""
    """The topic of dead letters; empty gives GROUP.dead-letters."""
    queues: int = 2
    """Number of queues of each topic that is created; an existing topic stays as it is."""

    def __post_init__(self) -> None:
        ok = isinstance(self.steps_ms, (tuple, list)) and len(self.steps_ms) <= 16
        require(ok, f"steps_ms must be at most 16 waits in milliseconds, not {self.steps_ms!r}")
        object.__setattr__(self, "steps_ms", tuple(self.steps_ms))
        for step in self.steps_ms:
            whole("a step of steps_ms", step, 0, RETRY_STEP_MS_MAX)
        require(isinstance(self.dead_letter, str), "dead_letter must be a topic's name")
        whole("queues", self.queues, 1, 65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """Options of `client.reader`."""

    fetch_bytes: int = 4 << 20
    """Most bytes in one reply of a broker. Only whole batches fit: with 2 MiB most replies hold one
    of the 1 MiB that producers make, and reading is 15 to 20 % slower."""
    prefetch_bytes: int = 16 << 20
    """Most bytes that are held ready, over all queues."""
    read_from: Literal["master", "any"] = "master"
    """`any` spreads readers that have an `end` over all nodes of a broker group, and asks the
    master where a node is behind or does not answer."""
    topic_id: int = 0
    """The id that the topic must have: a topic that was created again under the name is refused.
    0: any topic of the name."""
    on_lost: Literal["raise", "skip"] = "raise"
    """Where messages of a topic in memory are lost, `raise` raises OffsetsLost, once, and the next
    call goes on behind them; `skip` goes on at once, and says so in the program's log."""

    def __post_init__(self) -> None:
        check_fetch(self.fetch_bytes, self.prefetch_bytes)
        require(
            self.read_from in ("master", "any"),
            f"read_from must be 'master' or 'any', not {self.read_from!r}",
        )
        require(
            self.on_lost in ("raise", "skip"),
            f"on_lost must be 'raise' or 'skip', not {self.on_lost!r}",
        )
        whole("topic_id", self.topic_id, 0, (1 << 64) - 1)


def check_fetch(fetch_bytes: int, prefetch_bytes: int) -> None:
    """Raises InvalidRequest unless both byte limits of a fetch are in range."""
    whole("fetch_bytes", fetch_bytes, 1, 8 << 20)
    whole("prefetch_bytes", prefetch_bytes, 1, 1 << 40)
