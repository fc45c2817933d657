"""What the suites of `./run soak kafka-clients` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.kit.kafka_gateway import KafkaGatewayProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a suite is run against, and how."""

    gateways: list[KafkaGatewayProcess]
    place: Path
    """An empty directory of its own."""
    only: str = ""
    """Part of the names of the tests that are wanted."""
    chaos: bool = False
    records: int = 50_000

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the gateways."""
        return [gateway.address for gateway in self.gateways]

    @property
    def bootstrap(self) -> str:
        """All addresses, as clients take them."""
        return ",".join(self.addresses)
