"""The gateway for Kafka's clients beside `semel up --kafka`.

How it works. It is `semel kafka-gateway` on a port of this machine. A cluster with TLS gets none:
its gateway needs a client file of its own, whose rights all of its clients have, and here there is
only that of the administrator.

Not here: the gateway itself (`semel.gateway`), the process (`up_beside.py`).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from semel.console.cluster_file import ClusterPlan
from semel.console.up_beside import Beside
from semel.protos.errors import InvalidRequest
from semel.protos.logs import TEXT


def check() -> None:
    """Raises InvalidRequest if what the gateway needs is not installed."""
    if importlib.util.find_spec("kio") is None:
        raise InvalidRequest("the Kafka gateway needs kio: pip install 'semel[kafka]'")


def kafka_beside(plan: ClusterPlan, directory: Path, port: int, log_format: str = TEXT) -> Beside:
    """Returns the gateway of a cluster, to be entered; its place is HOST:PORT. Raises
    InvalidRequest for a cluster with TLS."""
    if plan.secure:
        raise InvalidRequest(
            "--kafka has no rights of its own in a cluster with TLS: start `semel kafka-gateway"
            " --client-config FILE` with those that Kafka's clients shall have"
        )
    return Beside(
        "Kafka gateway",
        directory / "logs" / "kafka-gateway.log",
        (
            *("kafka-gateway", "--listen", f"127.0.0.1:{port}", "--bootstrap", plan.bootstrap),
            *("--log-format", log_format),
        ),
        "address",
    )
