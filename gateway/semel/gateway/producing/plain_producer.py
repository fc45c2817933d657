"""The gateway's own producer: it stores for clients that do not number their records.

How it works. Such a client can tell a duplicate no better than Kafka's brokers can: what it sends
again is another batch. From the gateway on, the SDK's producer stores each batch once, under an id
of the gateway. Its messages do not pass the SDK's intake, since clients have chosen the queue and
wait for every batch.

Not here: fences, retries, splits (`client/producer/`).
"""

from __future__ import annotations

import time
from typing import Final, Literal

from semel.client.config import ProducerConfig
from semel.client.core.batching import Chunk, row_sizes
from semel.client.producer.futures import await_settled
from semel.client.producer.intake import Intake
from semel.client.producer.producer import ProducerCore
from semel.client.transport.cluster import Cluster
from semel.protos.batch import Codec
from semel.protos.columns import Columns
from semel.protos.ids import QueueId

DELIVERY_TIMEOUT_MS: Final = 30_000


class _GatewayProducer(ProducerCore):
    """A producer whose messages do not pass the intake."""

    async def submit(
        self, name: str, queue_id: QueueId, columns: Columns, time_us: int, due_us: int
    ) -> Chunk:
        """Sends messages to one queue of a topic. Raises SemelError."""
        topic = await self.open_topic(name)
        chunk = Chunk(name, time_us, time.monotonic() + DELIVERY_TIMEOUT_MS / 1000, due_us)
        chunk.values, chunk.keys = columns.values, columns.keys
        chunk.headers, chunk.timestamps = columns.headers, columns.timestamps
        chunk.message_ids = columns.message_ids
        chunk.message_bytes_max = topic.message_bytes_max
        chunk.queues = queue_id
        chunk.count = len(columns)
        chunk.bytes = int(row_sizes(columns).sum())
        self._keep(chunk)
        self._route(topic, chunk, 0)
        return chunk


class PlainProducers:
    """The gateway's producers, one for each codec. Lives on the client's I/O thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cores: dict[Codec, _GatewayProducer] = {}

    async def send(
        self,
        topic: str,
        queue_id: QueueId,
        columns: Columns,
        *,
        time_us: int,
        due_us: int,
        codec: Codec,
    ) -> int:
        """Stores messages and returns the offset of the first one, -1 if they are delayed. Raises
        SemelError."""
        chunk = await self._core(codec).submit(topic, queue_id, columns, time_us, due_us)
        await await_settled(chunk, lambda: chunk.settled)
        outcomes = chunk.outcomes(0, chunk.count) or []
        for _, outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return outcomes[0][1].base_offset

    def _core(self, codec: Codec) -> _GatewayProducer:
        core = self._cores.get(codec)
        if core is None or core.intake.failure() is not None:
            config = ProducerConfig(
                compression=_NAMES[codec], delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            )
            intake = Intake(config, wake=lambda: None, open_topic=None)
            core = self._cores[codec] = _GatewayProducer(self._cluster, "", config, intake)
            core.start()
        return core

    def close(self) -> None:
        """Ends at once; what is on its way may still be stored."""
        for core in self._cores.values():
            core.close()


_NAMES: Final[dict[Codec, Literal["none", "lz4", "zstd"]]] = {
    Codec.NONE: "none",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}
