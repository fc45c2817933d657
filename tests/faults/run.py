"""One run: a cluster behind proxies, a load, faults, healing, and the verdict of both checkers.

How it works. `Run` starts everything and waits until the load flows. The caller strikes; `bit`
notes a fault once it is shown to have happened. `healed` measures how long acknowledged writes took
to come back. `finish` ends the load in good order, waits until all nodes agree, stops them, reads
every node's files and lets `exactly_once` and `linearizability` judge.

Not here: the faults (`matrix.py`), choosing them (`tests/soak/chaos.py`).
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from semel.broker.log import Log, LogConfig
from semel.client import IdDedup, connect
from tests.checking.exactly_once import Report, check, require_evidence
from tests.checking.history import Fault, Mastered, Note
from tests.checking.raw_log import Fold, NodeLog, fold, overlay
from tests.faults.load import Crew, Load
from tests.faults.proxied import ProxiedCluster
from tests.faults.recording import Recording
from tests.faults.skewed_node import skew_of
from tests.faults.worker import Spec
from tests.kit.cluster import Node
from tests.kit.faulty_node import faults_of

TOPIC: Final = "t"
IDS_TOPIC: Final = "webhooks"
"""Compares message ids."""
RESUME_S: Final = 10.0
"""Acknowledged writes are back so long after healing, on a machine that has time for them."""
SEGMENT_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run has shown."""

    report: Report
    explained: int
    """Operations that the second checker put in order."""
    resumed_s: float
    """The longest time from a healing to the next acknowledged write."""
    faults: dict[str, int]

    def __str__(self) -> str:
        struck = ", ".join(f"{count} {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.report.ok} acknowledged, {self.report.unknown} unknown, "
            f"{self.report.deliveries} delivered, {self.explained} in order, "
            f"back after {self.resumed_s:.1f} s; {struck}"
        )


class Run:
    """`with Run(...) as run: ...; verdict = run.finish()`."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        queues: int = 4,
        crews: int = 2,
        rate: int = 200,
        resume_s: float = RESUME_S,
        broker_flags: Sequence[str] = (),
    ) -> None:
        """`crews` is the number of processes of clients: 1 holds all, 2 parts producers from
        consumers, 3 gives each kind of producer its own. `resume_s` may be more than `RESUME_S`
        where other loads share the machine."""
        self.directory = directory
        self.seed = seed
        self.resume_s = resume_s
        flags = ["--segment-bytes", str(SEGMENT_BYTES), "--checkpoint-records", "60"]
        flags += broker_flags
        self.cluster = ProxiedCluster(directory / "cluster", broker_flags=flags, seed=seed)
        self.disks = {node.id: faults_of(node) for node in self.cluster.brokers}
        self.clocks = {node.id: skew_of(node) for node in self.cluster.brokers}
        self.notes: list[Note] = []
        """What this process has done itself."""
        self._taken: set[int] = set()
        """Brokers that a fault has now."""
        self.struck: Counter[int] = Counter()
        """How many faults have had each broker: one that had it may have restarted it."""
        self._random = random.Random(seed)
        self._queues = queues
        self._crews = crews
        self._rate = rate
        self._stack = contextlib.ExitStack()
        self._resumed_s = 0.0
        self._faults: list[Fault] = []
        self.load: Load
        self.logs: list[NodeLog]
        """Set by `finish`, as is `recording`."""
        self.recording: Recording

    def __enter__(self) -> Run:
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(self.cluster)
            with connect(cluster.bootstrap) as client:
                client.admin.create_topic(TOPIC, queues=self._queues)
                ids = IdDedup(window_bytes=16 << 20)
                client.admin.create_topic(IDS_TOPIC, queues=2, dedup=ids)
            began = time.monotonic()
            self.load = stack.enter_context(Load(self.directory / "load", self._specs()))
            self.load.wait_acknowledged(began, 100, 60)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _specs(self) -> dict[str, Spec]:
        common = Spec(
            bootstrap=self.cluster.bootstrap,
            topic=TOPIC,
            ids_topic=IDS_TOPIC,
            life=0,
            seed=self.seed,
            history="",
            nodes=tuple(self.cluster.public_address(node) for node in self.cluster.brokers),
            rate=self._rate,
        )
        names: dict[str, dict[str, Any]] = {
            "producers": {"producers": ("plain-1", "plain-2"), "webhooks": ("hook-1", "hook-2")},
            "resumers": {"resumers": ("resumer-1",)},
            "consumers": {
                "consumers": (("group-1", "one"), ("group-1", "two"), ("group-2", "three")),
                "probers": ("prober-1", "prober-2", "prober-3"),
            },
        }
        if self._crews < 3:
            names["producers"] |= names.pop("resumers")
        if self._crews < 2:
            names["producers"] |= names.pop("consumers")
        return {
            name: Spec(**{**{each: getattr(common, each) for each in Spec.__slots__}, **parts})
            for name, parts in names.items()
        }

    def bit(self, name: str, shown: object = True) -> None:
        """Notes a fault that has bitten; `shown` is the evidence and must be true."""
        assert shown, f"the fault did not bite: {name}"
        self._faults.append(Fault(name=name, at_s=time.monotonic()))

    @contextlib.contextmanager
    def victim(self, role: str) -> Iterator[Node]:
        """A broker for one fault: the master, a slave, or any. No two faults get the same one.

        Without a majority nobody is master; then it is any that is left.
        """
        free = [node for node in self.cluster.brokers if node.id not in self._taken]
        running = [node for node in free if node.running]
        assert running, "every broker is taken by a fault already"
        master = self._master()
        if role == "master" and master in running:
            node = master
        else:
            slaves = [node for node in running if node is not master or role == "any"]
            node = self._random.choice(slaves or running)
        self._taken.add(node.id)
        self.struck[node.id] += 1
        try:
            yield node
        finally:
            self._taken.discard(node.id)

    def _master(self) -> Node | None:
        try:
            return self.cluster.master(timeout=5.0 if not self._taken else 1.5)
        except TimeoutError:
            return None

    def crew(self, kind: str) -> Crew:
        """The process that runs clients of that kind."""
        return self.load.crews.get(kind, self.load.crews["producers"])

    def go_on(self, count: int = 50, timeout: float = 30.0) -> float:
        """Waits until so many messages sent from now on are stored; seconds to the first."""
        return self.load.wait_acknowledged(time.monotonic(), count, timeout)

    def healed(self) -> float:
        """To be called when the last fault has ended: acknowledged writes come back in time."""
        took = self.load.wait_acknowledged(time.monotonic(), 30, self.resume_s)
        self._resumed_s = max(self._resumed_s, took)
        return took

    def finish(self, *, ok: int = 200) -> Verdict:
        """Drains, stops and judges. Raises Violation, NotLinearizable or AssertionError."""
        cluster = self.cluster
        cluster.network.heal()
        self.load.wait_acknowledged(0.0, ok, 60.0)  # on a slow machine rounds are short of them
        self.load.stop()
        cluster.wait_caught_up(timeout=60)
        self._verify()
        reached = self._reached()
        cluster.stop()
        logs = [read_log(node, index) for node, index in zip(cluster.brokers, reached, strict=True)]
        recording = Recording.read(self.load.directory)
        self.logs, self.recording = logs, recording
        for note in (*self.notes, *self._faults, *self._masters()):
            recording.history.add(note)
        report = check(recording.history, logs)
        recording.check_repeats()
        explained = recording.check_order(committed(logs))
        names = {fault.name for fault in self._faults}
        require_evidence(recording.history, faults=names, ok=ok)
        return Verdict(
            report=report,
            explained=explained,
            resumed_s=self._resumed_s,
            faults=dict(recording.history.faults),
        )

    def _verify(self) -> None:
        """Every node recomputes the topics from its own log, and all come to the same.

        Damage in old entries may be noticed only now, by this very reading; then the node must
        repair it by itself.
        """
        patience = self.resume_s if any(each.name == "flip-byte" for each in self._faults) else 0
        deadline = time.monotonic() + patience
        with connect(self.cluster.bootstrap) as client:
            for topic in (TOPIC, IDS_TOPIC):
                while not (verified := client.admin.verify(topic)).ok:
                    assert time.monotonic() < deadline, (
                        f"the nodes disagree: {verified.problems} {verified.unread}"
                    )
                    time.sleep(0.5)
                assert verified.nodes_compared == len(self.cluster.brokers)

    def _masters(self) -> list[Mastered]:
        """Every mastership that a node has written into its log."""
        found = []
        for node in self.cluster.brokers:
            text = node.log_file.read_text(errors="replace")
            for term in re.findall(r" role changed role=master term=(\d+) ", text):
                found.append(Mastered(node=node.id, term=int(term), at_s=0.0))
        assert found, "no node has ever said that it is master"
        return found

    def _reached(self) -> list[int]:
        """What each node has applied, and therefore knows as committed."""
        found = []
        for node in self.cluster.brokers:
            try:
                found.append(self.cluster.status(node).applied_index)
            except grpc.RpcError as error:
                raise AssertionError(f"broker {node.id} does not answer: {error}") from None
        return found


def read_log(node: Node, commit_index: int) -> NodeLog:
    """Every frame in a stopped node's files, and the state of its newest checkpoint."""
    log = Log.open(node.data / "log", LogConfig(segment_bytes=SEGMENT_BYTES))
    try:
        assert not log.damaged, f"broker {node.id} has damaged entries {sorted(log.damaged)}"
        first, last = log.first_index, log.last_index
        frames = dict(zip(range(first, last + 1), log.read_frames(first, last + 1), strict=True))
        checkpoint = log.checkpoint
        return NodeLog(
            node=node.id,
            frames=frames,
            commit_index=commit_index,
            applied_index=0 if checkpoint is None else checkpoint.index,
            state=None if checkpoint is None else checkpoint.payload,
        )
    finally:
        log.close()


def committed(logs: Sequence[NodeLog]) -> Fold:
    """What all logs together hold."""
    problems: list[str] = []
    folded = fold(overlay(logs, problems))
    assert not problems, problems
    return folded
