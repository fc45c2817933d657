"""Faults from outside: floods of connections, garbage, limits on descriptors and memory, strace.

How it works. These need no help of the node: sockets and requests come from this process, limits
are set on the running node by `prlimit`, system calls fail by `strace -e inject=`. Where a machine
cannot do that, `unavailable` of the fault says why; a run that leaves a fault out says so.

Not here: the other faults (`matrix.py`), which imports this module to have all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc
import psutil

from semel.broker.log.kernel_sync import KernelSyncs
from semel.client import connect
from semel.protos.errors import SemelError
from semel.protos.rpc import CHANNEL_OPTIONS
from semel.protos.v1 import broker_pb2, controller_pb2, raft_pb2
from tests.checking.history import Outcome, Send, digest_of
from tests.faults.fault import fault
from tests.faults.run import TOPIC, Run
from tests.kit.cluster import Node

CONNECTIONS: Final = 5_000
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BIG_BYTES: Final = 512 << 10


def _few_descriptors() -> str:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        return f"RLIMIT_NOFILE is {hard} at most; {2 * CONNECTIONS} are wanted"
    return ""


def _connected(node: Node, count: int) -> Iterator[socket.socket]:
    """Connections past the proxies, as a stranger makes them."""
    host, _, port = node.address.rpartition(":")
    for _ in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex((host, int(port)))
        yield stranger


@fault("flood", seconds=(3.0, 5.0), nodes=0, chaos=False, unavailable=_few_descriptors)
def _flood(run: Run, rng: random.Random) -> Iterator[None]:
    """5,000 idle connections to the master; those who were there are served."""
    with run.victim("master") as node, contextlib.ExitStack() as open_:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        open_.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (hard, hard))
        strangers = [open_.enter_context(each) for each in _connected(node, CONNECTIONS)]
        process = psutil.Process(node.pid)
        deadline = time.monotonic() + 20
        while process.num_fds() < CONNECTIONS:
            assert time.monotonic() < deadline, f"{process.num_fds()} descriptors in use"
            time.sleep(0.1)
        run.bit("flood", len(strangers) == CONNECTIONS)
        yield
        assert node.running


@fault("no-descriptors", seconds=(2.0, 4.0), chaos=False)
def _no_descriptors(run: Run, rng: random.Random) -> Iterator[None]:
    """The master may open ten files more, and 300 strangers connect: who was there is served."""
    with run.victim("master") as node, contextlib.ExitStack() as open_:
        process = psutil.Process(node.pid)
        limit = process.num_fds() + 10
        before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        for stranger in _connected(node, 300):
            open_.enter_context(stranger)
        deadline = time.monotonic() + 10
        while node.running and process.num_fds() < limit - 1:
            assert time.monotonic() < deadline, f"{process.num_fds()} of {limit} descriptors in use"
            time.sleep(0.02)
        run.bit("no-descriptors")
        yield
        assert node.running, f"broker {node.id} has ended: it had descriptors of its own"
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)


@fault("garbage", seconds=(0.5, 1.0), nodes=0, needs_work=True)
def _garbage(run: Run, rng: random.Random) -> Iterator[None]:
    """Random, cut and oversized bytes at every port and every call of every broker."""
    answered = sent = 0
    pids = {node.id: node.pid for node in run.cluster.brokers if node.running}
    struck = run.struck.copy()
    for node in run.cluster.brokers:
        if node.id not in pids or psutil.Process(node.pid).status() == psutil.STATUS_STOPPED:
            continue
        for port in run.cluster.ports(node):
            sent += _strange_bytes(port, rng)
        answered += _strange_calls(node.address, rng)
    run.bit("garbage", sent and answered)
    yield
    for node in run.cluster.brokers:
        if node.id in pids and run.struck[node.id] == struck[node.id]:
            assert node.running, f"broker {node.id} has ended"
            assert node.pid == pids[node.id], f"broker {node.id} was restarted"


def _strange_bytes(port: int, rng: random.Random) -> int:
    sent = 0
    for head in (b"", PREFACE, PREFACE + bytes(9), b"GET / HTTP/1.1\r\n\r\n"):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as one:
            one.sendall(head + rng.randbytes(rng.randrange(1, 5_000)))
            sent += 1
    return sent


def _strange_calls(address: str, rng: random.Random) -> int:
    """Every unary call with bytes that are no request; how many were answered by a status."""
    answered = 0
    services = [
        *broker_pb2.DESCRIPTOR.services_by_name.values(),
        *raft_pb2.DESCRIPTOR.services_by_name.values(),
        *controller_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        for service in services:
            for method in service.methods:
                call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
                call = channel.unary_unary(f"/{service.full_name}/{method.name}")
                size = rng.choice([0, 1, 30, 3_000])
                try:
                    call(rng.randbytes(size), timeout=0.5)
                    answered += 1
                except grpc.RpcError as error:
                    answered += error.code() is not grpc.StatusCode.UNAVAILABLE
    return answered


@fault("little-memory", seconds=(2.0, 3.0), majority=False, chaos=False)
def _little_memory(run: Run, rng: random.Random) -> Iterator[None]:
    """The master may use 48 MiB more, and gets 128 MiB at once: it sheds load or dies."""
    with run.victim("master") as node:
        process = psutil.Process(node.pid)
        limit = process.memory_info().vms + (48 << 20)
        before = resource.prlimit(node.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        stored = _send_big(run, rng, 256)
        ended = not node.running
        refused = (
            process.is_running() and not ended and process.memory_info().vms > limit - (16 << 20)
        )
        run.bit("little-memory", ended or refused or stored < 256)
        yield
        if node.running:
            resource.prlimit(node.pid, resource.RLIMIT_AS, before)
        else:
            run.cluster.start_node(node)


def _send_big(run: Run, rng: random.Random, count: int) -> int:
    """Sends `count` large messages by a producer of this process; returns how many were stored."""
    stored = 0
    client_name = f"big-{rng.randrange(1 << 40)}"
    with connect(run.cluster.bootstrap) as client:
        topic_id = client.admin.describe_topic(TOPIC).topic_id
        producer = client.producer(delivery_timeout_ms=20_000, buffer_bytes=256 << 20)
        sends = []
        for number in range(count):
            value = f"{client_name}#{number}".encode().ljust(BIG_BYTES, b".")
            note = Send(
                client=client_name,
                number=number,
                digest=digest_of(value),
                began_s=time.monotonic(),
            )
            run.notes.append(note)
            sends.append((note, producer.send(TOPIC, value)))
        for note, future in sends:
            try:
                done = future.result(30)
            except SemelError as error:
                note.error = type(error).__name__
                continue
            note.ended_s, note.outcome = time.monotonic(), Outcome.OK
            note.queue, note.offset = (topic_id, done.queue), done.offset
            stored += 1
        with contextlib.suppress(SemelError):
            producer.close(1)
    return stored


@functools.cache
def _no_strace() -> str:
    if shutil.which("strace") is None:
        return "this machine has no strace"
    with subprocess.Popen(["sleep", "5"]) as sleeper:
        try:
            tracer = subprocess.run(
                ["strace", "-qq", "-e", "trace=none", "-p", str(sleeper.pid)],
                capture_output=True,
                text=True,
                timeout=0.5,
                check=False,
            )
            return f"strace may not attach: {tracer.stderr.strip()[:100]}"
        except subprocess.TimeoutExpired:
            return ""  # it was attached for all that time
        finally:
            sleeper.kill()


@contextlib.contextmanager
def _traced(run: Run, node: Node, call: str, effect: str) -> Iterator[Path]:
    """The node's calls of that kind suffer an effect; what strace saw stands in the file."""
    seen = run.directory / f"strace-{time.monotonic_ns()}"
    command = ["strace", "-f", "-qq", "-o", str(seen), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:{effect}", "-p", str(node.pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as tracer:
        try:
            yield seen
        finally:
            tracer.terminate()
            tracer.wait(10)


def _wait_injected(seen: Path, timeout: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout
    while not seen.exists() or not any(
        mark in seen.read_text(errors="replace") for mark in ("(INJECTED)", "(DELAYED)")
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _no_kernel_syncs() -> str:
    if why := _no_strace():
        return why

    async def tried() -> str:
        with tempfile.TemporaryFile() as file:
            syncs = KernelSyncs.open(asyncio.get_running_loop(), file.fileno())
            if syncs is None:
                return "the kernel takes no syncs here"
            syncs.close()
            return ""

    return asyncio.run(tried())


@contextlib.contextmanager
def _syncing_by_thread(run: Run, node: Node) -> Iterator[None]:
    """The node is started again, and does all its syncs in its thread."""
    flags = ["--sync-by", "thread"]
    run.cluster.kill(node)
    node.command += flags
    try:
        run.cluster.start_node(node)
        yield
    finally:
        del node.command[-len(flags) :]


def _sync_fails(run: Run, name: str, node: Node, call: str, when: int) -> None:
    with _traced(run, node, call, f"error=EIO:when={when}") as seen:
        assert node.process is not None
        status = node.process.wait(20)
        run.bit(name, _wait_injected(seen))
    assert status == 1, f"broker {node.id} ended with status {status}"


@fault("strace-sync-fails", chaos=False, unavailable=_no_kernel_syncs)
def _strace_sync(run: Run, rng: random.Random) -> Iterator[None]:
    """The kernel answers EIO to one of the syncs that the master has it do: it ends."""
    with run.victim("master") as node:
        _sync_fails(run, "strace-sync-fails", node, "io_submit", rng.randrange(1, 6))
        yield
        run.cluster.start_node(node)


@fault("strace-thread-sync-fails", chaos=False, unavailable=_no_strace)
def _strace_thread_sync(run: Run, rng: random.Random) -> Iterator[None]:
    """The same of a node that syncs in its thread, by fdatasync."""
    with run.victim("slave") as node:
        with _syncing_by_thread(run, node):
            _sync_fails(run, "strace-thread-sync-fails", node, "fdatasync", rng.randrange(1, 6))
        yield
        run.cluster.start_node(node)


@fault("strace-slow-sync", seconds=(2.0, 3.0), chaos=False, unavailable=_no_strace)
def _strace_slow(run: Run, rng: random.Random) -> Iterator[None]:
    """Every fdatasync of a slave takes 300 ms longer in the kernel.

    In its thread: to delay the call that has the kernel sync would stop the loop, another fault.
    """
    with (
        run.victim("slave") as node,
        _syncing_by_thread(run, node),
        _traced(run, node, "fdatasync", "delay_exit=300000") as seen,
    ):
        run.bit("strace-slow-sync", _wait_injected(seen))
        yield
