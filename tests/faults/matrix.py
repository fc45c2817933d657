"""The fault matrix on real processes: what is killed, frozen, cut off, and which disks fail.

How it works. See `fault.py` for what a fault is. Every broker of a run stands behind proxies, on a
disk and a clock that can be told to misbehave.

Not here: pressure from outside (`pressure.py`); power loss, reordered packets and damage of every
single byte, which the simulator and `tests/integration/test_disk_faults.py` inject.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Iterator

import psutil

from tests.faults import pressure  # noqa: F401  (enters its faults)
from tests.faults.fault import FAULTS, Fault, fault
from tests.faults.proxied import CLIENTS, CONTROLLER
from tests.faults.run import Run
from tests.kit.faulty_node import Rule

__all__ = ["FAULTS", "Fault"]

# Kills.


@fault("kill-master")
def _kill_master(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of the master."""
    with run.victim("master") as node:
        run.cluster.kill(node)
        run.bit("kill-master", not node.running)
        yield
        run.cluster.start_node(node)


@fault("kill-slave")
def _kill_slave(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of a slave."""
    with run.victim("slave") as node:
        run.cluster.kill(node)
        run.bit("kill-slave", not node.running)
        yield
        run.cluster.start_node(node)


@fault("kill-all", majority=False, seconds=(0.0, 1.0), nodes=3)
def _kill_all(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of all brokers at once."""
    with contextlib.ExitStack() as taken:
        nodes = [taken.enter_context(run.victim("any")) for _ in run.cluster.brokers]
        for node in nodes:
            node_process = node.process
            assert node_process is not None
            node_process.kill()
        for node in nodes:
            run.cluster.kill(node)
        run.bit("kill-all", not any(node.running for node in nodes))
        yield
        rng.shuffle(nodes)
        for node in nodes:
            run.cluster.start_node(node)


@fault("kill-controller", nodes=0, takes="controller")
def _kill_controller(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of the controller: produce, consume, locks go on."""
    run.cluster.kill(run.cluster.controller)
    run.bit("kill-controller", not run.cluster.controller.running)
    yield
    run.cluster.start_node(run.cluster.controller)


@fault("kill-producers", majority=False, seconds=(0.0, 0.5), nodes=0, takes="producers")
def _kill_producers(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of the producers; their names go on in a new process."""
    run.crew("producers").kill()
    run.bit("kill-producers")
    yield
    run.crew("producers").start()


@fault("kill-consumers", seconds=(0.0, 0.5), nodes=0, takes="consumers")
def _kill_consumers(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGKILL of the consumers and probers in the middle of what they hold."""
    run.crew("consumers").kill()
    run.bit("kill-consumers")
    yield
    run.crew("consumers").start()


# Pauses.


def _stopped(pid: int, timeout: float = 5.0) -> bool:
    """The kernel has frozen the process."""
    deadline = time.monotonic() + timeout
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _paused(run: Run, role: str, name: str) -> Iterator[None]:
    with run.victim(role) as node:
        run.cluster.pause(node)
        run.bit(name, _stopped(node.pid))
        yield
        run.cluster.resume(node)


@fault("pause-master", seconds=(0.1, 4.0))
def _pause_master(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of the master, for less and for more than an election."""
    yield from _paused(run, "master", "pause-master")


@fault("pause-master-long", seconds=(15.0, 60.0), chaos=False)
def _pause_master_long(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of the master for up to a minute."""
    yield from _paused(run, "master", "pause-master-long")


@fault("stutter-master", seconds=(0.0, 0.5))
def _stutter_master(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of the master again and again: longer than a session, too short for an election."""
    with run.victim("master") as node:
        for _ in range(8):
            run.cluster.pause(node)
            stopped = _stopped(node.pid)
            time.sleep(rng.uniform(0.5, 0.95))
            run.cluster.resume(node)
            run.bit("stutter-master", stopped)
            time.sleep(rng.uniform(0.2, 0.6))
        yield


@fault("pause-slave", seconds=(0.1, 4.0))
def _pause_slave(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of a slave."""
    yield from _paused(run, "slave", "pause-slave")


@fault("pause-controller", seconds=(0.5, 4.0), nodes=0, takes="controller")
def _pause_controller(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of the controller."""
    run.cluster.pause(run.cluster.controller)
    run.bit("pause-controller", _stopped(run.cluster.controller.pid))
    yield
    run.cluster.resume(run.cluster.controller)


@fault("pause-consumers", seconds=(2.5, 5.0), nodes=0, takes="consumers")
def _pause_consumers(run: Run, rng: random.Random) -> Iterator[None]:
    """SIGSTOP of all consumers for longer than their locks live."""
    run.crew("consumers").signal(signal.SIGSTOP)
    run.bit("pause-consumers", _stopped(run.crew("consumers").pid))
    yield
    run.crew("consumers").signal(signal.SIGCONT)


# The network.


Flows = list[tuple[int, int]]


def _partition(run: Run, name: str, flows: Flows, resets: bool) -> Iterator[None]:
    before = run.cluster.held()
    run.cluster.network.cut(flows)
    yield
    run.bit(name, run.cluster.wait_held(before))
    run.cluster.network.free(flows)
    if resets:
        for source, target in flows:
            run.cluster.network.drop(source, target)


def _both_ways(a: int, b: int) -> Flows:
    return [(a, b), (b, a)]


def _between_brokers(run: Run) -> Flows:
    ids = [node.id for node in run.cluster.brokers]
    return [(a, b) for a in ids for b in ids if a != b]


def _count(run: Run, flows: Flows, what: str) -> int:
    return sum(int(getattr(run.cluster.network.flow(*each), what)) for each in flows)


@fault("isolate-master", seconds=(1.0, 4.0))
def _isolate_master(run: Run, rng: random.Random) -> Iterator[None]:
    """The master is cut off from everybody, clients too."""
    with run.victim("master") as node:
        flows = run.cluster.around(node)
        yield from _partition(run, "isolate-master", flows, rng.random() < 0.5)


@fault("isolate-master-with-clients", seconds=(1.0, 4.0))
def _isolate_with_clients(run: Run, rng: random.Random) -> Iterator[None]:
    """The master is cut off from the others and not from its clients: it must not answer."""
    with run.victim("master") as node:
        flows = run.cluster.around(node, clients=False)
        yield from _partition(run, "isolate-master-with-clients", flows, rng.random() < 0.5)


@fault("isolate-slave", seconds=(1.0, 4.0))
def _isolate_slave(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave is cut off and comes back without disturbing the master."""
    with run.victim("slave") as node:
        flows = run.cluster.around(node)
        yield from _partition(run, "isolate-slave", flows, rng.random() < 0.5)


@fault("cut-one-link", seconds=(1.0, 5.0), nodes=3)
def _cut_one_link(run: Run, rng: random.Random) -> Iterator[None]:
    """Master and one slave lose each other; both still hear the third, whom nothing else strikes.

    While another fault has the master, the cut would be between two slaves, who say nothing.
    """
    with run.victim("master") as node, run.victim("slave") as other:
        yield from _partition(run, "cut-one-link", _both_ways(node.id, other.id), False)


@fault("mute-master", seconds=(1.0, 4.0))
def _mute_master(run: Run, rng: random.Random) -> Iterator[None]:
    """One way: what the master says reaches no broker, it hears everything."""
    with run.victim("master") as node:
        yield from _partition(run, "mute-master", run.cluster.said_by(node), False)


@fault("deafen-master", seconds=(1.0, 4.0))
def _deafen_master(run: Run, rng: random.Random) -> Iterator[None]:
    """One way: the master's words arrive, it hears no broker."""
    with run.victim("master") as node:
        yield from _partition(run, "deafen-master", run.cluster.heard_by(node), False)


@fault("cut-all-brokers", majority=False, nodes=3)
def _cut_all(run: Run, rng: random.Random) -> Iterator[None]:
    """Every broker is alone with the clients."""
    flows = _between_brokers(run)
    yield from _partition(run, "cut-all-brokers", flows, rng.random() < 0.5)


@fault("cut-clients-from-master", majority=False)
def _cut_clients(run: Run, rng: random.Random) -> Iterator[None]:
    """Clients cannot reach the master, which stays one: they wait, and lose nothing."""
    with run.victim("master") as node:
        flows = _both_ways(CLIENTS, node.id)
        yield from _partition(run, "cut-clients-from-master", flows, False)


@fault("lose-answers", majority=False)
def _lose_answers(run: Run, rng: random.Random) -> Iterator[None]:
    """One way: requests reach the master, its answers are lost; everything is sent again."""
    with run.victim("master") as node:
        yield from _partition(run, "lose-answers", [(node.id, CLIENTS)], False)
        run.cluster.network.drop(CLIENTS, node.id)


@fault("cut-controller", nodes=0, takes="controller")
def _cut_controller(run: Run, rng: random.Random) -> Iterator[None]:
    """Nobody reaches the controller."""
    flows = [
        flow
        for source in (CLIENTS, *(node.id for node in run.cluster.brokers))
        for flow in _both_ways(source, CONTROLLER)
    ]
    yield from _partition(run, "cut-controller", flows, False)


@fault("drop-streams", nodes=0, needs_work=True)
def _drop_streams(run: Run, rng: random.Random) -> Iterator[None]:
    """Connections of brokers and clients are reset again and again."""
    dropped = 0
    for _ in range(6):
        for source, target in [*_between_brokers(run), *_from_clients(run)]:
            if rng.random() < 0.4:
                dropped += run.cluster.network.drop(source, target)
        time.sleep(rng.uniform(0.05, 0.3))
    run.bit("drop-streams", dropped)
    yield


def _from_clients(run: Run) -> Flows:
    return [(CLIENTS, node.id) for node in run.cluster.brokers]


@fault("delay", seconds=(2.0, 5.0), nodes=0, needs_work=True)
def _delay(run: Run, rng: random.Random) -> Iterator[None]:
    """Every link is 5 to 80 ms long, each its own length."""
    flows = [*_between_brokers(run), *_from_clients(run)]
    before = _count(run, flows, "delayed")
    for flow in flows:
        run.cluster.network.shape([flow], delay_s=rng.uniform(0.005, 0.08))
    yield
    run.bit("delay", _count(run, flows, "delayed") - before)
    run.cluster.network.shape(flows, delay_s=0)


@fault("throttle", seconds=(2.0, 5.0), needs_work=True)
def _throttle(run: Run, rng: random.Random) -> Iterator[None]:
    """One slave gets the log at 100 kB/s."""
    with run.victim("slave") as node:
        flows = run.cluster.heard_by(node)
        before = _count(run, flows, "throttled")
        run.cluster.network.shape(flows, bytes_per_s=100e3)
        yield
        run.bit("throttle", _count(run, flows, "throttled") - before)
        run.cluster.network.shape(flows, bytes_per_s=0)


@fault("corrupt-peers", majority=False, seconds=(2.0, 4.0), nodes=0, needs_work=True)
def _corrupt(run: Run, rng: random.Random) -> Iterator[None]:
    """One bit in about 30,000 bytes is flipped on every link between brokers.

    An entry of a megabyte never comes through that, so writes may stand still.
    """
    flows = _between_brokers(run)
    before = _count(run, flows, "corrupted")
    run.cluster.network.shape(flows, corrupt_every=30_000)
    yield
    deadline = time.monotonic() + 10
    while not (bitten := _count(run, flows, "corrupted") - before):
        assert time.monotonic() < deadline, "no byte was corrupted"
        time.sleep(0.05)
    run.bit("corrupt-peers", bitten)
    run.cluster.network.shape(flows, corrupt_every=0)


# Files.


@fault("lose-directory", seconds=(0.5, 2.0))
def _lose_directory(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave is killed and its data directory deleted: it comes back empty."""
    with run.victim("slave") as node:
        run.cluster.kill(node)
        shutil.rmtree(node.data)
        run.bit("lose-directory", not node.data.exists())
        yield
        run.cluster.start_node(node)


@fault("flip-byte", seconds=(0.5, 2.0))
def _flip_byte(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave is killed, and one written byte of a segment or checkpoint changed."""
    with run.victim("slave") as node:
        run.cluster.kill(node)
        files = sorted((node.data / "log").rglob("segment-*"))
        files += sorted((node.data / "log").rglob("checkpoint-*"))
        assert files, f"broker {node.id} has no segment"
        path = rng.choice(files)
        data = bytearray(path.read_bytes())
        at = rng.choice([at for at, byte in enumerate(data) if byte])
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        run.bit("flip-byte")
        yield
        run.cluster.start_node(node)


# The index of message ids, which nodes get back from each other.


@fault("lose-ids", seconds=(0.5, 2.0))
def _lose_ids(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave is killed and its index of message ids deleted."""
    with run.victim("slave") as node:
        run.cluster.kill(node)
        shutil.rmtree(node.data / "ids")
        run.bit("lose-ids", not (node.data / "ids").exists())
        yield
        run.cluster.start_node(node)


@fault("flip-ids", seconds=(0.5, 2.0))
def _flip_ids(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave is killed, and one byte of its index of message ids changed."""
    with run.victim("slave") as node:
        run.cluster.kill(node)
        files = [path for path in sorted((node.data / "ids").iterdir()) if path.stat().st_size]
        tables = [path for path in files if path.suffix == ".sst"]
        path = rng.choice(rng.choice([files, tables or files]))
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        run.bit("flip-ids")
        yield
        run.cluster.start_node(node)


# Disks. Every broker of a run stands on a disk that can be told to fail.


def _dies(run: Run, name: str, role: str, rule: Rule) -> Iterator[None]:
    """The disk fails, the process must end by itself, and is started again."""
    with run.victim(role) as node:
        disk = run.disks[node.id]
        before = len(disk.bites())
        disk.set(rule)
        assert node.process is not None
        status = node.process.wait(20)
        run.bit(name, len(disk.bites()) > before)
        assert status == 1, f"broker {node.id} ended with status {status}"
        last = node.log_file.read_text().splitlines()[-1]
        assert last.startswith("error: "), f"broker {node.id} ended without a word: {last}"
        yield
        disk.clear()
        run.cluster.start_node(node)


@fault("sync-fails", needs_work=True)
def _sync_fails(run: Run, rng: random.Random) -> Iterator[None]:
    """The master's next fsync fails: it ends, and never tries again."""
    rule = Rule(operation="sync", path="segment-*", error="EIO", after=rng.randrange(5))
    yield from _dies(run, "sync-fails", "master", rule)


@fault("write-fails", needs_work=True)
def _write_fails(run: Run, rng: random.Random) -> Iterator[None]:
    """A slave's write gets EIO: it ends."""
    rule = Rule(operation="write", path="segment-*", error="EIO", after=rng.randrange(5))
    yield from _dies(run, "write-fails", "slave", rule)


def _suffers(run: Run, name: str, role: str, rule: Rule) -> Iterator[None]:
    """The disk misbehaves for a while; the process lives on."""
    with run.victim(role) as node:
        disk = run.disks[node.id]
        before = len(disk.bites())
        disk.set(rule)
        disk.wait_bite(before + 1)
        run.bit(name)
        yield
        disk.clear()
        assert node.running, f"broker {node.id} has ended: {name} is no reason to"


@fault("sync-hangs", seconds=(1.0, 4.0), needs_work=True)
def _sync_hangs(run: Run, rng: random.Random) -> Iterator[None]:
    """The master's fsync hangs: it loses its place."""
    rule = Rule(operation="sync", path="segment-*", hang=True)
    yield from _suffers(run, "sync-hangs", "master", rule)


@fault("ids-disk-full", needs_work=True)
def _ids_disk_full(run: Run, rng: random.Random) -> Iterator[None]:
    """The disk takes nothing more of the master's index of message ids."""
    rule = Rule(operation="sync", path="ids", error="ENOSPC")
    yield from _suffers(run, "ids-disk-full", "master", rule)


@fault("slow-disk-master", seconds=(2.0, 4.0), needs_work=True)
def _slow_master(run: Run, rng: random.Random) -> Iterator[None]:
    """Each of the master's fsyncs takes 20 to 200 ms."""
    rule = Rule(operation="sync", path="segment-*", delay_ms=rng.uniform(20, 200))
    yield from _suffers(run, "slow-disk-master", "master", rule)


@fault("slow-disk-slave", seconds=(2.0, 4.0), needs_work=True)
def _slow_slave(run: Run, rng: random.Random) -> Iterator[None]:
    """Each of a slave's fsyncs takes 0.2 to 2 s."""
    rule = Rule(operation="sync", path="segment-*", delay_ms=rng.uniform(200, 2_000))
    yield from _suffers(run, "slow-disk-slave", "slave", rule)


@fault("disk-full-master", seconds=(4.0, 8.0), needs_work=True)
def _disk_full(run: Run, rng: random.Random) -> Iterator[None]:
    """The master finds no room for a further segment; somebody with room takes over."""
    rule = Rule(operation="allocate", error="ENOSPC")
    yield from _suffers(run, "disk-full-master", "master", rule)


# Clocks.


def _jumps(run: Run, rng: random.Random, name: str, role: str) -> Iterator[None]:
    with run.victim(role) as node:
        run.clocks[node.id].set(rng.choice([-3600.0, 3600.0]))
        yield
        run.bit(name, run.clocks[node.id].bitten or role == "slave")
        run.clocks[node.id].set(0.0)


@fault("clock-jump-master", seconds=(1.0, 3.0))
def _clock_master(run: Run, rng: random.Random) -> Iterator[None]:
    """The master's wall clock jumps an hour, and back again."""
    yield from _jumps(run, rng, "clock-jump-master", "master")
