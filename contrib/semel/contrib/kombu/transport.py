"""The transport that Kombu loads: `semel://HOST:PORT[/VIRTUAL_HOST]`.

How it works. A connection of Kombu has one client of a cluster, which finds everything else through
the controller of the URL. Of several URLs Kombu takes the next when one does not answer; the option
`bootstrap` has all of them asked at once.

Not here: channels (`channel.py`), the client (`cluster_link.py`).
"""

from __future__ import annotations

import threading
import time
from importlib.metadata import version
from queue import Empty
from typing import Any, Final

from kombu.transport import TRANSPORT_ALIASES, virtual

from semel.contrib.kombu.channel import Channel
from semel.contrib.kombu.cluster_link import ClusterLink
from semel.contrib.kombu.deliveries import Delivery
from semel.contrib.kombu.options import TransportOptions, read_options
from semel.contrib.kombu.queue_feed import QueueFeed, Verdict
from semel.protos.errors import Closed, FencedError, InvalidRequest, RetriableError

SCHEME: Final = "semel"
PORT: Final = 7070
_FIRST_PAUSE_S: Final = 0.002
_CONNECT_S: Final = 5.0

TRANSPORT_ALIASES.setdefault(SCHEME, "semel.contrib.kombu.transport:Transport")


class Transport(virtual.Transport):  # type: ignore[misc]
    """One connection of Kombu."""

    Channel = Channel
    default_port = PORT
    driver_type = SCHEME
    driver_name = "semel"
    connection_errors: tuple[Any, ...] = (
        *virtual.Transport.connection_errors,
        *(RetriableError, FencedError, Closed),
    )
    implements = virtual.Transport.implements.extend(
        exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Raises InvalidRequest for options that there are not."""
        self.options: TransportOptions = read_options(client.transport_options)
        super().__init__(client, **kwargs)
        self.polling_interval = self.options.polling_interval
        self._link: ClusterLink | None = None
        self._given: dict[str, tuple[QueueFeed, Delivery]] = {}
        """What was delivered and is not settled, by tag."""
        self._lock = threading.Lock()

    def driver_version(self) -> str:
        return version("semel")

    @property
    def link(self) -> ClusterLink:
        """The client. Raises Closed."""
        if self._link is None:
            raise Closed("the connection is closed")
        return self._link

    # --- connecting -----------------------------------------------------------------------------

    def establish_connection(self) -> Any:
        """Connects. Raises Unavailable, InvalidRequest."""
        if self._link is None:
            info = self.client
            if info.userid or info.password or info.ssl:
                raise InvalidRequest(
                    "a URL has no user and no TLS here: give transport_options"
                    " {'client': {'login': Login(…)}} or {'client': {'security': Security…}}"
                )
            self._link = ClusterLink(
                _address(info.hostname, info.port),
                self.options,
                virtual_host=info.virtual_host or "/",
                connect_timeout_s=info.connect_timeout or _CONNECT_S,
            )
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Disconnects; what is not settled is delivered again."""
        super().close_connection(connection)
        link, self._link = self._link, None
        if link is not None:
            link.close()

    # --- receiving ------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers one message. Raises TimeoutError when none comes within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        while True:
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                pass
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            time.sleep(min(pause, left))
            pause = min(pause * 2, self.polling_interval)

    def remember(self, tag: str, feed: QueueFeed, delivery: Delivery) -> None:
        """A message is about to be delivered under a tag."""
        with self._lock:
            self._given[tag] = feed, delivery

    def settle(self, tag: str, verdict: Verdict) -> None:
        """Says what becomes of the message of a tag; a tag that is not known any more is settled,
        or its channel was closed. Raises SemelError."""
        with self._lock:
            found = self._given.pop(tag, None)
        if found is not None:
            feed, delivery = found
            feed.settle(delivery, verdict)

    def forget_closed(self) -> None:
        """A channel was closed: its messages cannot be settled any more."""
        with self._lock:
            for tag in [tag for tag, (feed, _) in self._given.items() if feed.closed]:
                del self._given[tag]


def _address(host: str | None, port: int | str | None) -> str:
    """Returns the address that a connection has now; Kombu leaves one without a scheme whole."""
    named = host or "localhost"
    return named if ":" in named else f"{named}:{port or PORT}"
