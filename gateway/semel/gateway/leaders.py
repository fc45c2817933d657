"""Which gateway is which partition's leader. Pure.

Any gateway serves any partition; a leader only says where clients send what. All gateways say the
same as long as they know of the same gateways, and when one comes or goes, only the partitions that
it gets or had have another leader: each partition goes to the gateway that it draws the highest
number with (rendezvous hashing).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from semel.gateway.dispatch import GatewayPlace
from semel.protos.ids import QueueKey

_DRAWN: Final = struct.Struct(">iqi")


def leader_of(key: QueueKey, gateways: Sequence[GatewayPlace]) -> GatewayPlace:
    """Returns the leader of a queue's partition."""
    return max(gateways, key=lambda gateway: (_draw(key, gateway), gateway.node_id))


def _draw(key: QueueKey, gateway: GatewayPlace) -> int:
    return zlib.crc32(_DRAWN.pack(gateway.node_id, key.topic_id, key.queue_id))
