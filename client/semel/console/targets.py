"""The metrics addresses of the nodes of a `semel up`: `DIR/prometheus.json`.

How it works. Each node gets a port of its own when it is first started, preferably 1000 above the
one it listens on (8070, 8171, …), and keeps it unless another program takes the port. Prometheus
reads the file with `file_sd_configs`, so its configuration need not list the nodes; labels say
which node each target is.

Invariant: only the `up` that holds the directory writes the file, and renames it into place.
"""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any, Final

from semel.console.cluster_file import PRIVATE_PORTS, ClusterPlan, NodePlan, is_taken
from semel.protos.addresses import Address

FILE_NAME: Final = "prometheus.json"
PORT_STEP: Final = 1_000


def options(plan: ClusterPlan, node: NodePlan, directory: Path) -> list[str]:
    """Flags that make a node serve metrics; none where prometheus-client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        return []
    known = addresses(directory)
    address = known.get(node.name)
    if address is None or is_taken(address):
        known[node.name] = address = _choose(plan, node, known)
        _save(directory, plan, known)
    return ["--metrics-port", str(Address.parse(address).port)]


def addresses(directory: Path) -> dict[str, str]:
    """HOST:PORT of the metrics by the node's name.

    An unreadable file counts as empty: it is written anew.
    """
    try:
        rows = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        return {str(row["labels"]["node_name"]): str(row["targets"][0]) for row in rows}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _choose(plan: ClusterPlan, node: NodePlan, known: dict[str, str]) -> str:
    own = Address.parse(node.address)
    taken = {other.address for other in plan.nodes} | set(known.values())
    taken |= {other.login for other in plan.nodes}
    above = own.port + PORT_STEP
    near = [above] if above < PRIVATE_PORTS.stop else []
    for choice in (*near, *random.sample(PRIVATE_PORTS, len(PRIVATE_PORTS))):
        address = str(own.with_port(choice))
        if address not in taken and not is_taken(address):
            return address
    raise OSError(f"no port is free for the metrics of {node.name}")


def _save(directory: Path, plan: ClusterPlan, known: dict[str, str]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "targets": [known[node.name]],
            "labels": {
                "job": "semel",
                "node_name": node.name,
                "cluster_id": plan.cluster_id,
                **({"__scheme__": "https"} if plan.secure else {}),
            },
        }
        for node in plan.nodes
        if node.name in known
    ]
    temporary = directory / (FILE_NAME + ".new")
    temporary.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    temporary.replace(directory / FILE_NAME)
