"""A real cluster of processes for tests and benchmarks: started, killed, paused, restarted.

How it works. Some controllers and `groups` × `brokers` broker nodes run as `python -m` processes
under one data directory, each with its output in a file beside its data. Ports are chosen once, so
that a node that is started again keeps its address. Every process asks the kernel to be killed when
the one that started it ends, so that not even a killed test run leaves anything behind.

    with Cluster(tmp_path) as cluster:
        client = connect(cluster.bootstrap)
        master = cluster.master()
        cluster.kill(master)
        cluster.start_node(master)

Not here: `semel up`, the supervisor for people, which has tests of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from semel.protos.v1 import broker_pb2, broker_pb2_grpc, controller_pb2, controller_pb2_grpc
from tests.kit import forking
from tests.kit.ports import free_ports

HOST = "127.0.0.1"
CLUSTER_ID = "0" * 31 + "1"
# Dies with its parent thread, then becomes the node: keeps the pid, needs no code after a fork.
LAUNCHER = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_BY_EXEC = [sys.executable, "-S", "-E", "-c", LAUNCHER, "-m"]


def _forked(node: Node, output: tuple[int, int]) -> forking.Forked | None:
    """The node as a fork of what has imported its program, if there is such a thing, and the node
    runs nothing else."""
    program, *arguments = node.command[len(_BY_EXEC) :]
    if node.command[: len(_BY_EXEC)] != _BY_EXEC:
        return None
    with Path(os.devnull).open("rb") as nothing:
        return forking.begin(program, arguments, node.id, (nothing.fileno(), *output))


@dataclass(slots=True, kw_only=True)
class Node:
    """One process of the cluster."""

    kind: str
    """controller or broker."""
    id: int
    group: int
    """Broker group; 0 for a controller."""
    address: str
    data: Path
    command: list[str] = field(repr=False)
    process: subprocess.Popen[bytes] | forking.Forked | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """Process id of the running process. Asserts that there is one."""
        assert self.process is not None, f"{self.kind} {self.id} is not running"
        return self.process.pid

    @property
    def running(self) -> bool:
        """Started and not exited (a paused one is running)."""
        return self.process is not None and self.process.poll() is None

    @property
    def log_file(self) -> Path:
        """The file of its stderr, over all its lives."""
        return self.data.with_suffix(".log")

    @property
    def output_file(self) -> Path:
        """The file of its present life's stdout."""
        return self.data.with_suffix(".out")

    def resident_bytes(self) -> int:
        """Its resident memory, from /proc."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"{self.kind} {self.id} has no resident memory")


class Cluster:
    """Processes under one directory. The same directory starts the same cluster again."""

    def __init__(
        self,
        data: Path,
        *,
        brokers: int = 3,
        groups: int = 1,
        controllers: int = 1,
        metadata: str | None = None,
        broker_flags: Sequence[str] = (),
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        """`metadata` is a store elsewhere (`zookeeper://…`); without it the controllers have their
        own. `broker_flags` go to every broker node as they are."""
        self.data = data
        self.cluster_id = cluster_id
        data.mkdir(parents=True, exist_ok=True)
        ports = free_ports(controllers + brokers * groups)
        addresses = [f"{HOST}:{ports.pop(0)}" for _ in range(controllers)]
        self.controller_address = addresses[0]
        self.bootstrap = ",".join(addresses)
        """Addresses at which clients find the controllers."""
        flags = self._controller_flags()
        if metadata is not None:
            flags += ["--metadata", metadata]
        elif controllers > 1:
            peers = ",".join(f"{n}={address}" for n, address in enumerate(addresses, 1))
            flags += ["--peers", peers]
        self.controllers = [
            self._node("controller", n, 0, address, ["--controller-id", str(n), *flags])
            for n, address in enumerate(addresses, 1)
        ]
        self.controller = self.controllers[0]
        self.brokers: list[Node] = []
        for group in range(1, groups + 1):
            ids = range((group - 1) * brokers + 1, group * brokers + 1)
            members = {number: f"{HOST}:{ports[number - 1]}" for number in ids}
            for number, address in members.items():
                flags = ["--group", str(group), "--node", str(number), *broker_flags]
                flags += self._broker_flags(number, members)
                self.brokers.append(self._node("broker", number, group, address, flags))

    def _controller_flags(self) -> list[str]:
        """Flags that only this kind of cluster gives to its controllers."""
        return []

    def _broker_flags(self, number: int, members: dict[int, str]) -> list[str]:
        """Flags by which a broker node finds the others; `members` has the addresses of its
        group."""
        flags = ["--controllers", ",".join(node.address for node in self.controllers)]
        for member, address in members.items():
            flags += ["--member", f"{member}={address}"]
        return flags

    def _node(self, kind: str, number: int, group: int, address: str, flags: list[str]) -> Node:
        data = self.data / f"{kind}-{number}"
        command = [*_BY_EXEC, f"semel.{kind}", "--json"]
        command += ["--data", str(data), "--listen", address, "--cluster-id", self.cluster_id]
        command += flags
        return Node(kind=kind, id=number, group=group, address=address, data=data, command=command)

    def _channel(self, address: str) -> grpc.Channel:
        """A channel to a node."""
        return grpc.insecure_channel(address)

    @property
    def nodes(self) -> list[Node]:
        """The controllers, then the brokers."""
        return [*self.controllers, *self.brokers]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, timeout: float = 30.0) -> None:
        """Start all nodes that do not run, and wait until every group has a master that answers and
        all of its nodes count. A node that comes late to a group's first election does not count
        before it has caught up, and until then the group survives no loss."""
        for node in self.nodes:
            if not node.running:
                self._spawn(node)
        deadline = time.monotonic() + timeout
        for node in self.nodes:
            self._wait_listening(node, deadline)
        self.wait_ready(deadline - time.monotonic())
        for node in self.brokers:
            self._wait_counted(node, deadline)

    def start_node(self, node: Node, timeout: float = 30.0) -> None:
        """Start one node and wait until it listens."""
        assert not node.running, f"{node.kind} {node.id} runs already"
        self._spawn(node)
        self._wait_listening(node, time.monotonic() + timeout)

    def join(self, number: int, group: int = 1) -> Node:
        """Start a node that waits until an operator adds it to the group."""
        members = [node.address for node in self.brokers if node.group == group]
        flags = ["--group", str(group), "--node", str(number), "--join", ",".join(members)]
        flags += ["--controllers", self.bootstrap]
        node = self._node("broker", number, group, f"{HOST}:{free_ports(1)[0]}", flags)
        self.brokers.append(node)
        self.start_node(node)
        return node

    def stop(self) -> None:
        """Stop everything that runs: SIGTERM, then SIGKILL after five seconds."""
        running = [node for node in self.nodes if node.running]
        for node in running:
            os.kill(node.pid, signal.SIGCONT)
            os.kill(node.pid, signal.SIGTERM)
        deadline = time.monotonic() + 5
        for node in running:
            assert node.process is not None
            try:
                node.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()

    def kill(self, node: Node, sent: signal.Signals = signal.SIGKILL) -> None:
        """End one node and wait until it has gone."""
        os.kill(node.pid, sent)
        assert node.process is not None
        node.process.wait(15)

    def pause(self, node: Node) -> None:
        """Freeze one node (SIGSTOP)."""
        os.kill(node.pid, signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        """Let a frozen node go on (SIGCONT)."""
        os.kill(node.pid, signal.SIGCONT)

    def status(
        self, node: Node, *, confirmed: bool = False, timeout: float = 2.0
    ) -> broker_pb2.NodeStatusReply:
        """A broker's status. Raises grpc.RpcError when it does not answer."""
        with self._channel(node.address) as channel:
            request = broker_pb2.NodeStatusRequest(confirmed=confirmed)
            stub = broker_pb2_grpc.BrokerStub(channel)
            reply: broker_pb2.NodeStatusReply = stub.GetNodeStatus(request, timeout=timeout)
            return reply

    def master(self, group: int = 1, timeout: float = 10.0) -> Node:
        """The group's master, which has confirmed with a quorum that it is one."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for node in self.brokers:
                if node.group == group and node.running:
                    try:
                        reply = self.status(node, confirmed=True, timeout=0.5)
                    except grpc.RpcError:
                        continue
                    if reply.role == "master":
                        return node
            time.sleep(0.02)
        raise TimeoutError(f"broker group {group} has no master after {timeout} s{self._logs()}")

    def slaves(self, group: int = 1) -> list[Node]:
        """The group's running nodes that are not its master."""
        master = self.master(group)
        return [
            node for node in self.brokers if node.group == group and node.running and node != master
        ]

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until the controller knows a live master of every group."""
        deadline = time.monotonic() + timeout
        groups = {node.group for node in self.brokers}
        while True:
            known = self._groups_with_master()
            if known >= groups:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"only groups {sorted(known)} have a master{self._logs()}")
            time.sleep(0.02)
        for group in groups:
            self.master(group, max(1.0, deadline - time.monotonic()))

    def _groups_with_master(self) -> set[int]:
        for node in self.controllers:
            if node.running and (reply := self.controller_status(node)) is not None:
                return {group.group_id for group in reply.groups if group.master_id}
        return set()

    def controller_status(
        self, node: Node, *, standby: bool = False, timeout: float = 1.0
    ) -> controller_pb2.ClusterStatusReply | None:
        """The answer of a controller; None when it does not answer, or is not active."""
        with self._channel(node.address) as channel:
            stub = controller_pb2_grpc.ControllerStub(channel)
            request = controller_pb2.ClusterStatusRequest(standby=standby)
            reply: controller_pb2.ClusterStatusReply
            try:
                reply = stub.GetClusterStatus(request, timeout=timeout)
            except grpc.RpcError:
                return None
            return reply

    def active_controller(self, timeout: float = 20.0) -> Node:
        """The controller that answers as master."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for node in self.controllers:
                if node.running and self.controller_status(node, timeout=0.3) is not None:
                    return node
            time.sleep(0.02)
        raise TimeoutError(f"no active controller after {timeout} s{self._logs()}")

    def wait_caught_up(self, group: int = 1, timeout: float = 30.0) -> None:
        """Wait until every node of a group has applied what is committed now."""
        deadline = time.monotonic() + timeout
        target = self.status(self.master(group), confirmed=True).commit_index
        for node in self.brokers:
            while node.group == group and node.running:
                try:
                    if self.status(node).applied_index >= target:
                        break
                except grpc.RpcError:
                    pass
                if time.monotonic() > deadline:
                    raise TimeoutError(f"broker {node.id} is behind {target}{self._logs()}")
                time.sleep(0.02)

    def wait_synced(self, group: int = 1, timeout: float = 30.0) -> None:
        """Wait until no sync is due: all that the master's log holds is durable on every node.

        A message is acknowledged, and applied on a slave, before the slowest disk has it.
        """
        deadline = time.monotonic() + timeout
        target = self.status(self.master(group), confirmed=True).log_end_index
        for node in self.brokers:
            while node.group == group and self.status(node).synced_index < target:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"broker {node.id} has not synced {target}{self._logs()}")
                time.sleep(0.02)

    def _spawn(self, node: Node) -> None:
        with node.log_file.open("ab") as log, node.output_file.open("wb") as output:
            node.process = _forked(node, (output.fileno(), log.fileno())) or subprocess.Popen(
                node.command, stdin=subprocess.DEVNULL, stdout=output, stderr=log
            )

    def _wait_listening(self, node: Node, deadline: float) -> None:
        while True:
            first = node.output_file.read_bytes().partition(b"\n")
            if first[1]:
                json.loads(first[0])
                return
            if not node.running:
                raise RuntimeError(f"{node.kind} {node.id} did not start{self._logs()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node.kind} {node.id} does not listen{self._logs()}")
            time.sleep(0.01)

    def _wait_counted(self, node: Node, deadline: float) -> None:
        while True:
            with contextlib.suppress(grpc.RpcError):
                if not self.status(node, timeout=0.5).non_counting:
                    return
            if not node.running:
                return  # it gave up after it had listened: its test knows why
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {node.id} is not counted{self._logs()}")
            time.sleep(0.02)

    def _logs(self) -> str:
        """The end of every node's log, for the message of an error."""
        tails = []
        for node in self.nodes:
            if node.log_file.exists() and (text := node.log_file.read_text(errors="replace")):
                tails.append(f"{node.kind} {node.id}: …{text[-2_000:]}")
        return "".join(f"\n{tail}" for tail in tails)
