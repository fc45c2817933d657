"""The callers of an assault, their requests, and what those with rights leave alone.

How it works. Requests are made at random and from *hints*, values that mean something to the
servers. Who has few rights names what is guarded, and must have no effect. Who has all of them
would rightly delete topics and remove nodes: so its requests that name what the assault's checks
need, or a node that is there, are left out.

Not here: making and sending requests (`messages.py`, `assault.py`), callers without a certificate
(`strangers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from semel.protos.security.credentials import Security
from tests.fuzz.facts import GUARDED, GUARDED_GROUP, GUARDED_USER, OPEN
from tests.fuzz.messages import Hints
from tests.fuzz.witness import HEALTHY
from tests.kit.cluster import CLUSTER_ID, HOST, Cluster

VICTIM: Final = "victim"
"""The topic that those with all rights write to."""
RAW_TOPIC: Final = 4_242
"""Its queues are made by brokers alone, so that requests may move, trim and delete them."""
MIGHTY, FEW, ANYBODY = "mighty", "few", "anybody"
RULES: Final = (
    *(f"allow user:{MIGHTY} * {kind}:*" for kind in ("topic", "consumer-group", "producer")),
    f"allow user:{MIGHTY} * transaction:*",
    f"allow user:{MIGHTY} * cluster",
    f"allow user:{FEW} describe topic:{OPEN}",
    f"allow user:{FEW} read topic:{OPEN}",
    f"allow user:{FEW} commit consumer-group:{FEW}-*",
)
_OF_GROUPS: Final = frozenset(
    (
        *("ReportNode", "FoundGroup", "DrainNode", "TransferMastership", "RefoundNode"),
        *("RaiseLevel", "RestartNode"),
    )
)
"""Calls that would change a broker group which is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """What the requests of somebody who may do everything leave alone."""

    values: frozenset[str | int] = frozenset()
    """Names and topic ids."""
    topic_ids: frozenset[int] = frozenset()
    """Topics that are written to, and must stay."""
    nodes: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    """Broker groups."""

    def spares(self, method: str, request: Any) -> bool:
        """Whether a request of this method may be sent."""
        if method in _OF_GROUPS and request.group_id in self.groups:
            return False
        if method == "RestartController" and request.controller_id in self.nodes:
            return False
        if method == "ReadmitNode" and request.node_id in self.nodes:
            return False
        if method == "ChangeMember" and request.node.node_id in self.nodes:
            return False
        found = set(_leaves(request))
        if method in ("ApplyQueues", "TrimQueues") and found & self.topic_ids:
            return False
        return not found & self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody with a certificate, or a plain connection."""

    name: str
    security: Security | None = None
    hints: Hints = field(default_factory=Hints)
    spared: Spared = field(default_factory=Spared)
    mighty: bool = True
    """It may write to the assault's own topic."""


def with_all_rights(
    name: str, security: Security | None, cluster: Cluster, ids: dict[str, int]
) -> Caller:
    """Somebody who may do everything; `ids` are those of the topics."""
    kept = (HEALTHY, GUARDED, OPEN)
    users = (f"user:{name}" for name in (MIGHTY, FEW, "admin", "tester", HEALTHY))
    spared = Spared(
        values=frozenset(
            (*kept, *(ids[each] for each in kept), *users, "*", VICTIM, GUARDED_GROUP, GUARDED_USER)
        ),
        topic_ids=frozenset((ids[VICTIM],)),
        nodes=frozenset(node.id for node in cluster.nodes),
        groups=frozenset(node.group for node in cluster.brokers),
    )
    values = {
        **_SHAPES,
        "topic_id": (RAW_TOPIC, ids[VICTIM]),
        "group": ("assault", "other"),
        "topic": ("assault-1", "assault-2"),
        "topics": ("assault-1", "assault-2"),
        "name": ("assault-1", "assault-2"),
        "user": ("assault", "other"),
        "subject": ("user:assault", "topic:assault-1", "topic:assault-*"),
        "add_rules": ("allow user:assault read topic:assault-1", "deny user:assault * topic:*"),
        "remove_rules": ("allow user:assault read topic:assault-1", "deny user:assault * topic:*"),
        "address": (f"{HOST}:1", "nowhere"),
        "controllers": (f"{HOST}:1",),
        "node_id": (77, 78),
        "group_id": (7, 8),
    }
    return Caller(name=name, security=security, hints=Hints(values=values), spared=spared)


def with_few_rights(security: Security, cluster: Cluster, ids: dict[str, int]) -> Caller:
    """Somebody who may read one topic, and tries everything."""
    return Caller(name=FEW, security=security, hints=forbidden_values(cluster, ids), mighty=False)


def forbidden_values(cluster: Cluster, ids: dict[str, int]) -> Hints:
    """Values of requests that would do harm if they were let in."""
    values = {
        **_SHAPES,
        "topic_id": (ids[GUARDED], ids[OPEN]),
        "topic_ids": (ids[GUARDED], ids[OPEN]),
        "group": (GUARDED_GROUP, f"{FEW}-group"),
        "topic": (GUARDED, OPEN),
        "topics": (GUARDED, OPEN),
        "name": (GUARDED, OPEN, f"{FEW}-new", "calls_waiting_max"),
        "user": (GUARDED_USER, FEW),
        "subject": ("*", f"topic:{GUARDED}", "user:admin"),
        "add_rules": (f"allow user:{FEW} * topic:*", f"allow user:{FEW} * cluster"),
        "remove_rules": RULES,
        "address": (cluster.brokers[0].address, f"{HOST}:1"),
        "controllers": (cluster.bootstrap,),
        "node_id": tuple(node.id for node in cluster.brokers),
        "to_node_id": tuple(node.id for node in cluster.brokers),
        "group_id": (1,),
        "role": ("master",),
        "term": (5, 1 << 40),
        "drain_ms": (60_000,),
        "level": (1, 9, 10),
        "controller_id": (1,),
        "value": ("1",),
    }
    return Hints(values=values)


_SHAPES: Final[dict[str, tuple[Any, ...]]] = {
    "cluster_id": (CLUSTER_ID, "another"),
    "queue_id": (0, 1, 2),
    "producer_id": (5, 900_000, 900_001),
    "epoch": (1, 2),
    "session": (1, 2),
    "member_id": ("one", "two"),
    "transaction_id": ("t1", "t2"),
    "offset": (0, 1, 5),
    "slot_end": (65_536, 32_768),
    "lock_ms": (100, 1_000),
    "session_ms": (100, 1_000),
    "max_wait_ms": (0, 5, 50),
    "wait_ms": (0, 5, 50),
    "max_bytes": (0, 1, 1 << 20),
    "queues": (1, 3),
    "index": (1, 5, 50),
}


def _leaves(message: Any) -> Iterator[str | int]:
    """All texts and numbers in a message."""
    for each, value in message.ListFields():
        values = value if each.is_repeated else (value,)
        for one in values:
            if each.type == each.TYPE_MESSAGE:
                if not hasattr(one, "ListFields"):  # a key of a map
                    continue
                yield from _leaves(one)
            elif isinstance(one, str | int):
                yield one
