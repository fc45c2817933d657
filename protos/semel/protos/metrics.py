"""Metrics of both servers: their meaning, a histogram, and the page that is served over HTTP.

How it works. A part lists its metrics as a table of `Metric`. It keeps plain
numbers where things happen, and gathers them into `Samples` when the page is read. `render` turns
them into Prometheus text; docs/metrics.md is made from the same tables. Only histograms count
continuously; everything else costs nothing as long as nobody reads the page.

`MetricsServer` answers over HTTP/1.0 on the process's own event loop, one request a connection.
`GET /metrics` is the page, which is rendered in a thread, so that a large one does not hold up the
loop. `GET /livez` says that the event loop lives, `GET /readyz` whether the program does its part,
with the reason if not. With TLS, it answers HTTPS, and only whose certificate is of this cluster.
Probes of orchestrators show none, so who speaks plaintext gets `/livez` and `/readyz` all the same:
they tell nothing but one of a few sentences.

Invariants
1. A page has only names that are in the table, and their samples have the table's labels.
2. The server has at most `_CONNECTIONS_MAX` readers at once, each for at most `_TIMEOUT_S`, and
   makes one page at a time. So a stranger on this port costs a bounded amount of memory,
   descriptors and work.

Not here: the metrics themselves (`broker/metric_table.py`, `controller/probe.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from semel.protos import compat
from semel.protos.addresses import Address
from semel.protos.errors import Unavailable
from semel.protos.listening import cannot_listen
from semel.protos.security.credentials import Contexts
from semel.protos.security.identity import check_peer, identity_of_ssl
from semel.protos.security.tls_connection import TlsConnection
from semel.protos.security.tls_session import TlsFailed, begins_tls
from semel.protos.seldom import Seldom

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

logger = logging.getLogger(__name__)

SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of a histogram's buckets: from a fast disk's sync to a client's patience."""
_CONNECTIONS_MAX: Final = 8
_TIMEOUT_S: Final = 10.0
_REQUEST_BYTES_MAX: Final = 16 << 10
_OK: Final = "200 OK"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The type of the page, as Prometheus knows it."""
_PAGES: Final = b"GET /metrics, /livez and /readyz are all there is\n"


class Histogram:
    """Counts of durations, by length. One thread counts, any thread may read."""

    __slots__ = ("_counts", "total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts one duration, or several of the same length."""
        self._counts[bisect_left(SECONDS, seconds)] += times
        self.total_s += seconds * times

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Returns (upper bound, number of durations up to it) pairs, the last one for `+Inf`."""
        found, rows = 0, []
        bounds = [*map(str, SECONDS), "+Inf"]
        for bound, count in zip(bounds, list(self._counts), strict=True):
            found += count
            rows.append((bound, float(found)))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric, as it is documented."""

    name: str
    """`semel_<part>_<noun>_<unit>`; counters end in `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    """For human readers: bytes, seconds, messages, …"""
    text: str
    """Its meaning, in one sentence."""
    labels: tuple[str, ...] = ()


Value: TypeAlias = float | Histogram


class Samples:
    """The figures of one page."""

    def __init__(self, metrics: Iterable[Metric], common: Mapping[str, str]) -> None:
        """Every sample has the `common` labels."""
        self.metrics = {metric.name: metric for metric in metrics}
        self.common = dict(common)
        self.rows: dict[str, list[tuple[tuple[str, ...], Value]]] = {}

    def add(self, name: str, value: Value, **labels: object) -> None:
        """Adds one figure; its labels must be those of the table."""
        metric = self.metrics[name]
        assert set(labels) == set(metric.labels), f"{name} has the labels {metric.labels}"
        assert isinstance(value, Histogram) == (metric.kind == "histogram"), name
        row = tuple(str(labels[label]) for label in metric.labels)
        self.rows.setdefault(name, []).append((row, value))


def render(samples: Samples) -> bytes:
    """Returns Prometheus text: the samples, then the standard figures of this process. Any thread
    may call it."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(samples))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """The samples in the form that prometheus_client reads."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        for name, rows in self._samples.rows.items():
            yield _family(self._samples.metrics[name], self._samples.common, rows)


def _family(
    metric: Metric, common: Mapping[str, str], rows: Sequence[tuple[tuple[str, ...], Any]]
) -> Family:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    names = [*common, *metric.labels]
    shared = list(common.values())
    if metric.kind == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.text, labels=names)
        for labels, found in rows:
            histogram.add_metric([*shared, *labels], found.cumulative(), found.total_s)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.text, labels=names)
    for labels, value in rows:
        family.add_metric([*shared, *labels], value)
    return family


class MetricsServer:
    """Serves `GET /metrics`, `/livez` and `/readyz`."""

    def __init__(
        self,
        host: str,
        port: int,
        page: Callable[[], Awaitable[Samples]],
        why_not_ready: Callable[[], str],
        *,
        tls: Contexts | None = None,
        cluster: str = "",
    ) -> None:
        """`page` gathers the figures, and `why_not_ready` gives a sentence, or none if the program
        is ready; both on the event loop. Port 0 takes a free port. With `tls` it is HTTPS, for
        those with a certificate of `cluster`."""
        self._why_not_ready = why_not_ready
        self._tls = None if tls is None else tls.server(logins=True)
        self._cluster = cluster
        self._host = host
        self._port = port
        self._page = page
        self._server: asyncio.Server | None = None
        self._making = asyncio.Lock()
        self._readers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._refusals = Seldom(logger)
        self.address = ""
        """HOST:PORT, once it serves."""

    async def start(self) -> None:
        """Begins to serve. Raises Unavailable if the address cannot be used, or if the library that
        writes the text is not installed."""
        if importlib.util.find_spec("prometheus_client") is None:
            raise Unavailable("metrics need prometheus-client: install semel[broker]")
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._new_connection, self._host, self._port
            )
        except OSError as error:
            address = Address(self._host, self._port)
            raise cannot_listen(address, error, "--metrics-port") from error
        port = self._server.sockets[0].getsockname()[1]
        self.address = str(Address(self._host, port))

    async def close(self) -> None:
        """Stops serving; a page under way is cut off."""
        if self._server is not None:
            self._server.close()
        for writer in self._readers.values():
            writer.transport.abort()
        if self._readers:
            await asyncio.wait(self._readers)

    def _new_connection(self) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(limit=_REQUEST_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader, self._accept)
        if self._tls is None:
            return protocol
        return TlsConnection(
            protocol,
            self._tls,
            server_side=True,
            check=lambda shown: check_peer(identity_of_ssl(shown), self._cluster),
            plaintext=lambda transport: True,
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._readers[task] = writer
        try:
            if len(self._readers) <= _CONNECTIONS_MAX:  # else it is closed without an answer
                async with compat.timeout(_TIMEOUT_S):
                    await self._serve(reader, writer)
        except TlsFailed as error:
            self._refuse(writer, error)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the reader went away, was too slow, or does not speak HTTP
        except Exception:
            logger.exception("the metrics page could not be made")
        finally:
            del self._readers[task]
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if begins_tls(first):
            raise TlsFailed("it wants HTTPS, and this port speaks HTTP")
        head = first + await reader.readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            await _answer(writer, "405 Method Not Allowed", _PAGES)
            return
        known = self._tls is None or writer.get_extra_info("ssl_object") is not None
        path = words[1].partition(b"?")[0]
        if path == b"/metrics" and not known:
            self._refuse(writer, "it asks for metrics in plaintext")
            status, body = "400 Bad Request", b"/metrics needs HTTPS here, with a certificate\n"
        else:
            status, body = await self._answer_to(path)
        await _answer(writer, status, body, head_only=words[0] == b"HEAD")

    def _refuse(self, writer: asyncio.StreamWriter, reason: object) -> None:
        peer = ":".join(map(str, (writer.get_extra_info("peername") or ("?",))[:2]))
        self._refusals.warning("metrics refused from=%s reason=%s", peer, reason)

    async def _answer_to(self, path: bytes) -> tuple[str, bytes]:
        """Status and body."""
        if path == b"/livez":
            return _OK, b"alive\n"
        if path == b"/readyz":
            reason = self._why_not_ready()
            return (
                ("503 Service Unavailable", f"{reason}\n".encode()) if reason else (_OK, b"ready\n")
            )
        if path != b"/metrics":
            return "404 Not Found", _PAGES
        async with self._making:
            return _OK, await asyncio.to_thread(render, await self._page())


async def _answer(
    writer: asyncio.StreamWriter, status: str, body: bytes, *, head_only: bool = False
) -> None:
    head = (
        f"HTTP/1.0 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + (b"" if head_only else body))
    await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
