"""Options of the transport: a frozen dataclass, made of Kombu's `transport_options`.

Kombu and Celery keep options of their own in the same mapping; those are left to them. Any other
name is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.client import ConsumerConfig, IdDedup, RetryPolicy
from semel.client.config import build, require, whole

_OF_KOMBU: Final = frozenset(
    {
        *("max_retries", "interval_start", "interval_step", "interval_max", "errback"),
        *("retry_errors", "connect_retries_timeout", "body_encoding", "deadletter_queue"),
        *("client_properties", "confirm_publish", "socket_timeout", "visibility_timeout"),
    }
)
"""Options that Kombu reads, or that Celery sets for every transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """`transport_options` of a connection, `broker_transport_options` of Celery."""

    bootstrap: str = ""
    """The controllers, "HOST:PORT[,HOST:PORT]", of which any may be down; empty takes the one
    of the URL. Of several URLs Kombu takes the next when one does not answer."""
    queues: int = 8
    """Number of queues of a topic that is created, and so the most workers that can share it. An
    existing topic stays as it is."""
    lock_ms: int = 3_600_000
    """Milliseconds after which a message that is neither acknowledged nor rejected is delivered
    again, and for which a new worker waits for what another one is working on. Longer than the
    longest task; what a worker that dies had is delivered again after `session_ms`."""
    session_ms: int = 10_000
    """Milliseconds of silence after which a worker is given up."""
    retry_steps_ms: tuple[int, ...] = ()
    """Milliseconds before the second, third, … delivery of a message that is requeued; after the
    last it is a dead letter. Empty: the same worker gets it again at once, as often as it asks."""
    dead_letters: bool = True
    """A message that is rejected for good is kept in the topic QUEUE.dead-letters. Without that it
    is gone."""
    dedup_window_bytes: int = 0
    """Topics that are created compare ids in a window of so many bytes, so that a message that
    Kombu sends again after an error is stored once. 0: they do not."""
    look_ms: int = 2_000
    """Milliseconds that a look for one message (`basic_get`) waits when there are some that this
    connection has not got, before it says that there is none."""
    polling_interval: float = 0.05
    """Seconds between looks at idle queues."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `semel.client.connect`, such as `security` or `login`."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        require(isinstance(self.bootstrap, str), "bootstrap must be text")
        whole("queues", self.queues, 1, 65_536)
        whole("look_ms", self.look_ms, 0, 3_600_000)
        require(isinstance(self.dead_letters, bool), "dead_letters must be True or False")
        require(isinstance(self.client, Mapping), "client must be a mapping of options of connect")
        ok = isinstance(self.polling_interval, int | float) and 0 < self.polling_interval <= 60
        require(ok, f"polling_interval must be from 0 to 60 s, not {self.polling_interval!r}")
        require(
            self.dead_letters or not self.retry_steps_ms,
            "retry_steps_ms needs dead_letters, for what has failed at every step",
        )
        self.retry_policy()
        self.dedup()
        self.consumer_options()

    def retry_policy(self) -> RetryPolicy | None:
        """Returns the policy of consumers; None when nothing is kept. Raises InvalidRequest."""
        policy = RetryPolicy(steps_ms=self.retry_steps_ms)
        return policy if self.dead_letters else None

    def dedup(self) -> IdDedup | None:
        """Returns the setting of topics that are created. Raises InvalidRequest."""
        if self.dedup_window_bytes == 0:
            return None
        return IdDedup(window_bytes=self.dedup_window_bytes)

    def consumer_options(self) -> dict[str, Any]:
        """Returns options of every consumer. Raises InvalidRequest."""
        options: dict[str, Any] = {
            "lock_ms": self.lock_ms,
            "session_ms": self.session_ms,
            "hand_over_ms": self.lock_ms,
        }
        ConsumerConfig(**options)
        return options


def read_options(given: Mapping[str, Any] | None) -> TransportOptions:
    """Returns the options that are this transport's. Raises InvalidRequest."""
    own = {name: value for name, value in (given or {}).items() if name not in _OF_KOMBU}
    return build(TransportOptions, own)
