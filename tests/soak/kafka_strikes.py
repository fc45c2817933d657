"""What happens to a cluster and its gateways in soaks of Kafka's clients."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from tests.kit.cluster import Cluster
from tests.kit.kafka_gateway import KafkaGatewayProcess

MUTE: Final = "gateway that answers no more"
"""It is frozen before it is killed: what it has passed on is stored, and the client never hears."""
STRIKES: Final = (
    *("master", "gateway", "gateway", "master and gateway", "all gateways"),
    *("pause master", "pause gateway", MUTE, "controller"),
)
FROZEN_S: Final = 0.3
GATEWAY_PAUSE_S: Final = (0.1, 9.0)
"""Its session at the controllers lasts 6 s: after more it wakes up among the dead."""


def strike(
    name: str,
    cluster: Cluster,
    gateways: Sequence[KafkaGatewayProcess],
    rng: random.Random,
) -> None:
    """Kills or freezes what one of `STRIKES` names, and brings it back after some time."""
    rest_s = rng.uniform(0.1, 3.0)
    if name == "pause master":
        master = cluster.master()
        cluster.pause(master)
        try:
            time.sleep(rest_s)
        finally:
            cluster.resume(master)
    elif name == "pause gateway":
        gateway = rng.choice(gateways)
        gateway.pause()
        try:
            time.sleep(rng.uniform(*GATEWAY_PAUSE_S))
        finally:
            gateway.resume()
    elif name == MUTE:
        gateway = rng.choice(gateways)
        gateway.pause()
        time.sleep(FROZEN_S)
        gateway.kill()
        gateway.start()
    elif name == "controller":
        controller = cluster.active_controller()
        cluster.kill(controller)
        time.sleep(rest_s)
        cluster.start_node(controller)
    else:
        assert name in STRIKES, name
        chosen = {"master": [], "all gateways": list(gateways)}.get(name, [rng.choice(gateways)])
        masters = [cluster.master()] if "master" in name else []
        for gateway in chosen:
            gateway.kill()
        for master in masters:
            cluster.kill(master)
        time.sleep(rest_s)
        for master in masters:
            cluster.start_node(master)
        for gateway in chosen:
            gateway.start()
