"""The metrics of a Kafka gateway.

How it works. Each request for the page reads all figures from the parts that own them.

Not here: text and HTTP (`protos/metrics.py`), the meaning for an operator (docs/kafka.md).
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final, Literal

from semel.gateway.dispatch import Gateways
from semel.gateway.groups.group_table import GroupTable
from semel.gateway.principals.principal_pool import PrincipalPool
from semel.gateway.server import KafkaServer
from semel.gateway.services import Services, added
from semel.gateway.versions import ApiKey
from semel.protos.metrics import Metric, Samples


def _metric(
    kind: Literal["counter", "gauge", "histogram"], name: str, unit: str, text: str, *labels: str
) -> Metric:
    return Metric(name=f"semel_gateway_{name}", kind=kind, unit=unit, text=text, labels=labels)


COMMON: Final = ("gateway",)
"""Label of every sample: the address that clients know."""

METRICS: Final = (
    _metric("gauge", "info", "1", "This program.", "version"),
    _metric("gauge", "gateways", "gateways", "Gateways of the cluster, as far as this one knows."),
    _metric("gauge", "connections", "connections", "Connections of Kafka's clients."),
    _metric(
        "counter",
        "refused_connections_total",
        "connections",
        "Connections that were refused because there were too many.",
    ),
    _metric(
        "counter",
        "broken_connections_total",
        "connections",
        "Connections that were closed because of what the client sent.",
    ),
    _metric("gauge", "request_bytes", "bytes", "Bytes of the requests under way."),
    _metric("counter", "requests_total", "requests", "Requests that were answered.", "api"),
    _metric(
        "histogram",
        "request_seconds",
        "seconds",
        "From a request that is read to its answer, waiting for messages included.",
        "api",
    ),
    _metric("counter", "produced_records_total", "records", "Records that were stored."),
    _metric("counter", "produced_bytes_total", "bytes", "Bytes of their record batches."),
    _metric(
        "counter",
        "duplicate_batches_total",
        "batches",
        "Batches of idempotent producers that were stored before.",
    ),
    _metric(
        "gauge", "producer_lanes", "lanes", "Idempotent producers and the queues that each uses."
    ),
    _metric("counter", "fetched_bytes_total", "bytes", "Bytes of record batches that were sent."),
    _metric("gauge", "held_bytes", "bytes", "Bytes of record batches kept for consumers to come."),
    _metric("gauge", "read_queues", "queues", "Queues that consumers read."),
    _metric(
        "gauge",
        "fetch_sessions",
        "sessions",
        "Consumers that name only what has changed in what they read.",
    ),
    _metric("gauge", "groups", "groups", "Consumer groups that it coordinates."),
    _metric("gauge", "group_members", "members", "Members of these groups: Kafka's clients."),
    _metric(
        "counter",
        "rebalances_total",
        "rebalances",
        "Generations that groups have begun here: their partitions were shared out anew.",
    ),
    _metric("gauge", "principals", "principals", "Users that have logged in and are served."),
    _metric(
        "counter",
        "logins_total",
        "logins",
        "Proofs of clients that the controllers took, or that were denied.",
        "result",
    ),
)


class GatewayProbe:
    """The page of one gateway."""

    def __init__(
        self,
        advertised: str,
        server: KafkaServer,
        own: Services,
        pool: PrincipalPool | None,
        gateways: Gateways,
        groups: GroupTable,
    ) -> None:
        self._advertised = advertised
        self._server = server
        self._own = own
        self._pool = pool
        self._gateways = gateways
        self._groups = groups

    async def page(self) -> Samples:
        """Gathers the figures."""
        samples = Samples(METRICS, {"gateway": self._advertised})

        def add(name: str, value: float, **labels: object) -> None:
            samples.add(f"semel_gateway_{name}", float(value), **labels)

        server, pool = self._server, self._pool
        figures = added([self._own.figures, *([] if pool is None else [pool.figures])])
        add("info", 1, version=version("semel"))
        add("gateways", len(self._gateways.present))
        add("connections", server.connections.count)
        add("refused_connections_total", server.connections.refused)
        add("broken_connections_total", server.refused)
        add("request_bytes", server.held_bytes)
        for key in ApiKey:
            name = key.name.lower()
            add("requests_total", server.answered[key], api=name)
            samples.add("semel_gateway_request_seconds", server.times[key], api=name)
        add("produced_records_total", figures.records)
        add("produced_bytes_total", figures.bytes)
        add("duplicate_batches_total", figures.duplicates)
        add("producer_lanes", figures.lanes)
        add("fetched_bytes_total", figures.fetched_bytes)
        add("held_bytes", figures.held_bytes)
        add("read_queues", figures.readers)
        add("fetch_sessions", figures.sessions)
        add("principals", 0 if pool is None else pool.principals)
        add("logins_total", 0 if pool is None else pool.logins, result="taken")
        add("logins_total", 0 if pool is None else pool.denied, result="denied")
        add("groups", len(self._groups))
        add("group_members", self._groups.member_count)
        add("rebalances_total", self._groups.rebalances)
        return samples
