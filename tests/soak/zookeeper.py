"""Three controllers' stores on a real ZooKeeper that is cut off, stopped and killed, for as long as
you like: `./run soak zookeeper`.

How it works. Whoever is master takes a fence, as an active controller does, and counts under it;
each number is one compare-and-set. Links to ZooKeeper are held one way or both, connections are
reset, the server is stopped and killed, all at random from a seed. After every round everything is
healed, and it must count again. Checked all the time: no two leases at once, no number acknowledged
twice, no read goes back. At the end: no acknowledged number is missing, none was counted that
nobody asked for, and every kind of fault has bitten.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from semel.controller.store import ControllerAddress, Transaction, VersionConflict
from semel.controller.store.zookeeper import ZooKeeperStore
from semel.protos import compat
from semel.protos.errors import RetriableError
from tests.faults.proxy import Network
from tests.kit.zookeeper import Server, running_server

CONTROLLERS = (1, 2, 3)
SERVER = 9
REQUEST_S = 4.0
RESUME_S = 30.0
FAULTS = ("requests", "replies", "both", "reset", "stop", "kill")


class Run:
    """One seed's stores, what they did and what was seen of it."""

    def __init__(self, server: Server, network: Network, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.network = network
        self.chroot = f"/{secrets.token_hex(8)}"
        self.stores: dict[int, ZooKeeperStore] = {}
        self.acknowledged: dict[int, int] = {}
        """Revision by number."""
        self.unknown = 0
        self.epochs = 0
        self.master = CONTROLLERS[0]
        """The newest one."""
        self.bitten: Counter[str] = Counter()
        self.read_revision = 0
        """The newest that a reader has seen."""

    async def open(self) -> None:
        """Opens the stores, each behind its own link."""
        port = int(self.server.address.rpartition(":")[2])
        for number in CONTROLLERS:
            self.network.expose(number, SERVER, [port])
            store = await ZooKeeperStore.open(
                (f"127.1.{number}.{SERVER}:{port}",), self.chroot, request_s=REQUEST_S
            )
            await store.start(ControllerAddress(controller_id=number, address=f"host:{number}"))
            self.stores[number] = store

    async def control(self, number: int) -> None:
        """Counts whenever this controller is master."""
        store = self.stores[number]
        counting: list[asyncio.Task[None]] = []
        try:
            async for mastership in store.mastership():
                await _end(counting)
                if mastership.mine:
                    self.check_leases(number)
                    self.epochs += 1
                    self.master = number
                    counting.append(asyncio.create_task(self.count(store)))
        finally:
            await _end(counting)

    def check_leases(self, number: int) -> None:
        """The controller that is told to be master is the only one."""
        now = asyncio.get_running_loop().time()
        for other, store in self.stores.items():
            lease = None if store._election is None else store._election._lease_end
            if other != number and lease is not None:
                assert lease.when() <= now, f"controllers {other} and {number} are both master"

    async def count(self, store: ZooKeeperStore) -> None:
        """One epoch: a fence, then one number after the other, until a write is refused."""
        while True:
            try:
                found = await store.get("/fence")
                fence = await store.transact(
                    Transaction(
                        checks={"/fence": None if found is None else found.version},
                        puts={"/fence": b""},
                    )
                )
                while True:
                    await self.one(store, fence)
            except VersionConflict:
                continue
            except RetriableError:
                await asyncio.sleep(0.05)

    async def one(self, store: ZooKeeperStore, fence: int) -> None:
        entry = await store.get("/n")
        value, version = (0, None) if entry is None else (int(entry.value), entry.version)
        change = Transaction(
            checks={"/fence": fence, "/n": version},
            puts={"/n": b"%d" % (value + 1), f"/recent/{value % 50}": b"%d" % value},
        )
        try:
            revision = await store.transact(change)
        except VersionConflict:
            raise
        except (RetriableError, asyncio.CancelledError):
            self.unknown += 1
            raise
        assert value + 1 not in self.acknowledged, f"{value + 1} was counted twice"
        self.acknowledged[value + 1] = revision

    async def follow(self) -> None:
        """Reads all the time, over a link that breaks, too."""
        while True:
            try:
                found = await self.stores[CONTROLLERS[0]].scan("/recent/")
            except RetriableError:
                await asyncio.sleep(0.05)
                continue
            newest = max((entry.version for entry in found.values()), default=0)
            assert newest >= self.read_revision, "a read went back"
            self.read_revision = newest
            await asyncio.sleep(0.02)

    async def fault(self) -> None:
        """One fault, healed again."""
        kind = self.random.choice(FAULTS)
        number = self.random.choice((self.master, self.master, *CONTROLLERS))
        seconds = self.random.choice((0.2, 1.0, 4.0))
        there, back = [(number, SERVER)], [(SERVER, number)]
        match kind:
            case "requests" | "replies" | "both":
                flows = {"requests": there, "replies": back, "both": there + back}[kind]
                before = sum(self.network.flow(*flow).held for flow in flows)
                self.network.cut(flows)
                await asyncio.sleep(seconds)
                self.bitten[kind] += sum(self.network.flow(*f).held for f in flows) > before
                if self.random.random() < 0.5:
                    self.network.drop(number, SERVER)
                self.network.free(flows)
            case "reset":
                self.bitten[kind] += self.network.drop(number, SERVER) > 0
            case "stop":
                assert self.server.process is not None
                self.server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                self.server.process.send_signal(signal.SIGCONT)
                self.bitten[kind] += 1
            case _:
                self.server.end(signal.SIGKILL)
                await asyncio.to_thread(self.server.start)
                self.bitten[kind] += 1

    async def resumed(self) -> None:
        """Returns once numbers are acknowledged again."""
        before = len(self.acknowledged)
        async with compat.timeout(RESUME_S):
            while len(self.acknowledged) == before:
                await asyncio.sleep(0.02)

    async def judge(self) -> None:
        """Compares what was acknowledged with what is there."""
        store = self.stores[CONTROLLERS[0]]
        entry = await store.get("/n")
        assert entry is not None
        last = int(entry.value)
        missing = set(range(1, last + 1)) - self.acknowledged.keys()
        assert max(self.acknowledged) <= last, "an acknowledged number is missing"
        assert len(missing) <= self.unknown, f"{len(missing)} numbers that nobody asked for"
        revisions = [self.acknowledged[number] for number in sorted(self.acknowledged)]
        assert revisions == sorted(set(revisions)), "revisions do not rise with the numbers"
        async with compat.timeout(RESUME_S):
            while self.read_revision < revisions[-1]:
                await asyncio.sleep(0.02)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels tasks; what they found wrong is raised."""
    while tasks:
        task = tasks.pop()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def soak(server: Server, network: Network, seed: int, seconds: float) -> Run:
    """Runs one seed; raises AssertionError when something that was promised is not so."""
    run = Run(server, network, seed)
    await run.open()
    began = time.monotonic()
    try:
        async with compat.TaskGroup() as tasks:
            going = [tasks.create_task(run.control(number)) for number in CONTROLLERS]
            going.append(tasks.create_task(run.follow()))
            await run.resumed()
            while time.monotonic() - began < seconds:
                await run.fault()
                await run.resumed()
            for task in going[: len(CONTROLLERS)]:
                task.cancel()
            await asyncio.gather(*going[: len(CONTROLLERS)], return_exceptions=True)
            await run.judge()
            going[-1].cancel()
    finally:
        network.heal()
        for store in run.stores.values():
            await store.close()
    return run


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak zookeeper", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="[600]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(Path(directory)) as server,
        Network(given.seed) as network,
    ):
        run = asyncio.run(soak(server, network, given.seed, given.seconds))
    print(
        f"{len(run.acknowledged)} numbers, {run.unknown} of unknown fate, {run.epochs} epochs, "
        f"faults {dict(sorted(run.bitten.items()))}"
    )
    silent = [kind for kind in FAULTS if not run.bitten[kind]]
    if silent and given.seconds >= 300:
        print(f"error: these faults never bit: {', '.join(silent)}")
        return 1
    return 0
