"""A whole assault on one cluster: who takes part, in which order, and what must hold at the end.

How it works. A healthy program sends and reads all the time. At a cluster without TLS one caller
does everything at once. At one with rules, strangers and somebody with few rights come first, and
afterwards everything must be as it was; then comes somebody with all rights. At the end

- every node lives, and no log has a traceback or an error;
- nobody got an answer that stands for a bug of the node, and no stranger any answer;
- no node has taken more than `GROWTH_BYTES_MAX` of memory;
- every topic can be read to its end by everybody, and the nodes agree on it (`semel verify`);
- the healthy program got all of its messages stored and read, exactly once.

Not here: the parts (`assault.py`, `strangers.py`, `facts.py`, `witness.py`), the planted faults
that each check must notice (`careless_node.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.client import connect
from tests.fuzz.assault import Assault
from tests.fuzz.callers import (
    ANYBODY,
    FEW,
    MIGHTY,
    RULES,
    VICTIM,
    with_all_rights,
    with_few_rights,
)
from tests.fuzz.facts import GUARDED, OPEN, differences, facts_of, make_facts, unreadable
from tests.fuzz.liar import Tally
from tests.fuzz.strangers import Strangers
from tests.fuzz.witness import (
    HEALTHY,
    Connecting,
    Healthy,
    grown,
    problems_of,
    resident,
    verified,
)
from tests.kit.cluster import Cluster
from tests.kit.ruled_cluster import RuledCluster
from tests.kit.waiting import until

GROWTH_BYTES_MAX: Final = 512 << 20
_LAST_CALLS_S: Final = 5.0
SHARES: Final = {"stranger": 0.4, FEW: 0.3, MIGHTY: 0.3}
"""The shares of the inputs of a siege with rules, by caller."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What a siege saw."""

    found: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    healthy: int = 0
    """Messages of the healthy program."""
    slowest_s: float = 0.0
    """The longest that one of them took."""
    denials: int = 0
    """Lines of the audit logs about somebody who was refused."""
    took_s: float = 0.0
    """Seconds in which inputs were sent."""

    @property
    def inputs(self) -> int:
        """The number of inputs that were sent."""
        return self.tally.sent.total()


class Siege:
    """One cluster, which runs, and those who assault it."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        *,
        ends_s: float = float("inf"),
        growth_bytes_max: int = GROWTH_BYTES_MAX,
    ) -> None:
        """`ends_s` is the monotonic time at which all stop."""
        self.report = Report()
        self._cluster = cluster
        self._seed = seed
        self._ends_s = ends_s
        self._growth_bytes_max = growth_bytes_max
        self._before = resident(cluster)

    def plain(self, inputs: int) -> Report:
        """BLOCKING. Assaults a cluster without TLS."""

        def connecting() -> Any:
            return connect(self._cluster.bootstrap, keep_routes=False)

        ids = self._prepare(connecting, ruled=False)
        anybody = with_all_rights(ANYBODY, None, self._cluster, ids)
        with Healthy(connecting) as healthy:
            self._send([self._assault(anybody, ids).run(inputs, ends_s=self._ends_s)])
        return self._judge(connecting, healthy)

    def ruled(self, inputs: int) -> Report:
        """BLOCKING. Assaults a cluster with TLS and rules."""
        cluster = self._cluster
        assert isinstance(cluster, RuledCluster)
        ids = self._prepare(cluster.connect, ruled=True)
        few = with_few_rights(cluster.security_of(FEW), cluster, ids)
        mighty = with_all_rights(MIGHTY, cluster.security_of(MIGHTY), cluster, ids)
        strangers = Strangers(cluster, self._seed, ids, self.report.tally)
        share = {name: int(inputs * part) for name, part in SHARES.items()}
        with Healthy(cluster.connect) as healthy:
            until(lambda: healthy.read or healthy.error, 30, "the healthy program")
            with cluster.connect() as client:
                before = facts_of(client, ruled=True)
                self._send(
                    [
                        strangers.run(share["stranger"], ends_s=self._ends_s),
                        self._assault(few, ids).run(share[FEW], ends_s=self._ends_s),
                    ]
                )
                after = facts_of(client, ruled=True)
            self.report.found += differences(before, after, own=f"{FEW}-")
            self._read_audit(cluster)
            self._send([self._assault(mighty, ids).run(share[MIGHTY], ends_s=self._ends_s)])
        return self._judge(cluster.connect, healthy)

    def _prepare(self, connecting: Connecting, *, ruled: bool) -> dict[str, int]:
        """Makes the topics and what must stay; returns the ids of the topics."""
        with connecting() as client:
            for topic in (HEALTHY, VICTIM):
                client.admin.create_topic(topic, queues=2)
            make_facts(client, ruled=ruled)
            if ruled:
                client.admin.change_access_rules(add=RULES)
            names = (HEALTHY, VICTIM, GUARDED, OPEN)
            return {one.name: one.topic_id for one in client.admin.describe_topics(names)}

    def _assault(self, caller: Any, ids: dict[str, int]) -> Assault:
        topic_id = ids[VICTIM if caller.mighty else GUARDED]
        return Assault(self._cluster, self._seed, caller, topic_id, self.report.tally)

    def _send(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        async def all_at_once() -> None:
            await asyncio.gather(*works)
            # Calls that were cancelled end a moment later, and need the loop for that.
            if left := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(left, timeout=_LAST_CALLS_S)

        began = time.monotonic()
        asyncio.run(all_at_once())
        self.report.took_s += time.monotonic() - began

    def _read_audit(self, cluster: RuledCluster) -> None:
        for line in cluster.audited():
            if line.get("result") == "logged in":
                self.report.found.append(f"a stranger has logged in: {line}")
            self.report.denials += line.get("result") in ("denied", "refused", "unauthenticated")

    def _judge(self, connecting: Connecting, healthy: Healthy) -> Report:
        report = self.report
        report.healthy, report.slowest_s = len(healthy.sent), healthy.slowest_s
        report.found += problems_of(self._cluster)
        report.found += report.tally.bugs
        report.found += healthy.problems()
        report.found += grown(self._cluster, self._before, self._growth_bytes_max)
        if all(node.running for node in self._cluster.nodes):
            with connecting() as client:
                report.found += unreadable(client)
                report.found += verified(client, [HEALTHY, VICTIM, GUARDED, OPEN])
        return report
