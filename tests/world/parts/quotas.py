"""A cluster with quotas: those who use more wait, nobody else does, and nothing is lost or doubled.

How it works. A *treasurer* sets, changes and removes quotas while everything else goes on: of
users, of topics, for every other user; of rates, and of what there may be at a time. *Spenders*
send and open producers as fast as they are let, *askers* make calls, followers read. In half of the
worlds every program is a user of its own (`identities.py`); in the others all are one user without
a name. Each node's ledger follows what comes and passes (`../quota_watch.py`).

When all faults are over, the treasurer changes quotas while masters die, and looks whether each
node has heard of it a second after the answer. At last it removes all of them.

Beside upgrades there are no quotas: older programs do not know them.

What must hold: nobody gets more than its quota allows; nobody who has something left of it waits; a
send that waited is stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import Any, Final

from semel.client import connect_async
from semel.protos.security.identity import ADMIN, Identity
from semel.protos.security.quotas import QuotaKind
from tests.world.clients import TOPIC, ClientHost, Sender
from tests.world.identities import security
from tests.world.loop import Process
from tests.world.memorists import CAREFUL
from tests.world.nemesis import Nemesis
from tests.world.nodes import BrokerHost
from tests.world.parts.rights import with_identities
from tests.world.plan import Plan, Step, with_clients, with_steps, without_clients
from tests.world.quota_ledger import Quotas
from tests.world.quota_watch import Watch, watched
from tests.world.registry import Part, add_part, fault, host_of, program, random_of
from tests.world.run import Run

TREASURER: Final = "treasurer 1"
IN_FORCE_S: Final = 1.0
"""A change is in force on every node so long after its answer."""
_CALM_S: Final = 3.0
"""All nodes have met the active controller again so long after the last fault."""
_ROUNDS: Final = 3
_OF_USERS: Final[dict[QuotaKind, tuple[int, ...]]] = {
    QuotaKind.WRITE_BYTES: (3_000, 6_000, 20_000),
    QuotaKind.MESSAGES: (8, 20, 60),
    QuotaKind.READ_BYTES: (8_000, 30_000),
    QuotaKind.REQUESTS: (10, 30),
    QuotaKind.PRODUCERS: (2, 4, 8),
}
_OF_TOPICS: Final[dict[QuotaKind, tuple[int, ...]]] = {
    QuotaKind.WRITE_BYTES: (3_000, 8_000, 20_000),
    QuotaKind.MESSAGES: (10, 30),
    QuotaKind.READ_BYTES: (8_000, 30_000),
    QuotaKind.DELAYED_BYTES: (0, 300, 1_500),
    QuotaKind.STAGED_BYTES: (0, 300, 2_000),
}
_CRASH: Final = "spender crash"


# --- the plan


def with_quotas(plan: Plan) -> Plan:
    random = random_of(plan, "quotas")
    kinds = random.choices(("kill master", "client crash", "stop master", "heal"), k=3)
    kinds += [_CRASH] * random.choice((0, 3, 6))
    steps = [
        Step(round(random.uniform(0, plan.duration_s + 1.2), 6), kind, random.getrandbits(32))
        for kind in kinds
    ]
    others = [
        name
        for name, share in (("spender 2", 0.5), ("postponer 1", 0.8), ("teller 1", 0.5))
        if random.random() < share
    ]
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 1.2)
    return with_clients(longer, (TREASURER, "spender 1", "asker 1", "follower 1", *others))


def _without_upgrades(plan: Plan) -> Plan:
    if not any(name.startswith("upgrader") for name in plan.clients):
        return plan
    return without_clients(plan, "treasurer")


@fault(_CRASH)
def _crash(nemesis: Nemesis) -> None:
    """Programs die whose messages wait: others wait behind them."""
    nemesis.kill_clients(Spender)(nemesis.run.groups[0])


# --- programs


class Spender(Sender):
    """Sends as fast as it can with a few messages on their way, by one producer after the other."""

    async def work(self, client: Any) -> None:
        while not self.stopping:
            async with client.producer(linger_ms=1, delivery_timeout_ms=self.timeout_ms) as one:
                for _ in range(self.random.choice((2, 4))):
                    sent = [self.send(one)[1] for _ in range(self.random.choice((1, 3, 6)))]
                    await asyncio.gather(*sent)
                    await self.pause(self.mean_s)
                    if self.stopping:
                        break
        self.done = True


@program("spender", host="sp")
def _spender(run: Run, host: str) -> Spender:
    return Spender(run.world, host, 0.02, 20_000)


class Asker(ClientHost):
    """Makes calls to controllers and brokers."""

    async def work(self, client: Any) -> None:
        while not self.stopping:
            if self.random.random() < 0.5:
                await client.admin.list_topics()
            else:
                await client.admin.describe_topic(TOPIC)
            await self.pause(0.02)
        self.done = True


@program("asker", host="as")
def _asker(run: Run, host: str) -> Asker:
    return Asker(run.world, host)


class Treasurer(ClientHost):
    """Sets quotas, and looks whether they are in force."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self.watch: Watch | None = None
        """None in a world without quotas."""
        self._quotas: dict[tuple[str, QuotaKind], int] = {}
        """Those that were set, or may have been."""
        self._stopping_s: float | None = None

    async def work(self, client: Any) -> None:
        async with connect_async(
            self.bootstrap,
            request_timeout_ms=4_000,
            connect_timeout_ms=3_000,
            keep_routes=False,
            security=self._administrator(),
        ) as own:
            while not self.stopping:
                await self._change(own)
                await self.pause(0.15)
            if self._stopping_s is None:
                self._stopping_s = self.world.now
            await asyncio.sleep(max(0.0, self._stopping_s + _CALM_S - self.world.now))
            for _ in range(_ROUNDS):
                await self._prove(own)
            await self._remove(own, [subject for subject, _ in self._quotas])
            await self._check_heard(self._serving(old_s=2.0))
        self.done = True

    async def wind_up(self) -> None:
        """Goes on until all quotas are gone."""

    def _administrator(self) -> Any:
        if self.security is None:
            return None
        return security(Identity(ADMIN, self.name, self.security.cluster))

    # --- changes

    def _draw(self) -> tuple[str, dict[QuotaKind, int]]:
        """A subject, and some limits of it."""
        random = self.random
        subjects = ["*", "*", f"topic:{TOPIC}", f"topic:{TOPIC}", f"topic:{TOPIC[:3]}*"]
        if self.security is not None:
            named = [name for name in self._run.plan.clients if name != TREASURER]
            subjects += [f"user:{host_of(random.choice(named))}", "user:sp1"]
        subject = random.choice(subjects)
        kinds = _OF_TOPICS if subject.startswith("topic:") else _OF_USERS
        chosen = random.sample(list(kinds), random.choice((1, 2, 3)))
        return subject, {kind: random.choice(kinds[kind]) for kind in chosen}

    async def _change(self, own: Any) -> None:
        if self._quotas and self.random.random() < 0.25:
            subject, _ = self.random.choice(list(self._quotas))
            await self._remove(own, [subject])
            return
        await self._set(own, *self._draw())

    async def _set(self, own: Any, subject: str, limits: dict[QuotaKind, int]) -> None:
        self._quotas |= {(subject, kind): limit for kind, limit in limits.items()}
        await own.admin.set_quotas(subject, {kind.value: n for kind, n in limits.items()})
        self.world.count("quotas set")

    async def _remove(self, own: Any, subjects: list[str]) -> None:
        for subject in dict.fromkeys(subjects):
            await own.admin.remove_quotas(subject)
            self._quotas = {key: n for key, n in self._quotas.items() if key[0] != subject}
        self.world.count("quotas removed")

    # --- the proof

    async def _prove(self, own: Any) -> None:
        """Changes a quota while a master dies, and looks at all nodes that live on."""
        when = self.random.choice(("before", "after", "not"))
        if any(step.kind == CAREFUL for step in self._run.plan.steps):
            when = "not"  # no node dies there before others have what it has in memory
        before = self._serving(old_s=2.0)
        if when == "before":
            self._kill()
        await self._set(own, *self._draw())
        if when == "after":
            self._kill()
        await self._check_heard(before)

    def _kill(self) -> None:
        group = self.random.choice(self._run.groups)
        host = group.master()
        if host is not None and host.alive:
            self.world.count("master died while a quota changed")
            self.world.crash(host.name, "kill while a quota changes")

    def _serving(self, *, old_s: float) -> dict[Process, BrokerHost]:
        """Processes of brokers that have served for so long."""
        watch = self.watch
        assert watch is not None
        found = {}
        for host in self._run.hosts.values():
            process = host.process
            if process is None or host.replica is None or host.context is None or host.retired:
                continue
            ledger = watch.ledgers.get(process)
            if ledger is None or ledger.born_s > self.world.now - old_s:
                continue
            found[process] = host
        return found

    async def _check_heard(self, processes: dict[Process, BrokerHost]) -> None:
        """A second after the answer, each of these processes goes by the quotas that were set."""
        world, watch = self.world, self.watch
        assert watch is not None
        began_s, wanted = world.now, dict(self._quotas)
        await asyncio.sleep(IN_FORCE_S)
        for process in processes:
            if not process.alive or watch.excused(began_s, process):
                continue
            heard: Quotas = watch.ledgers[process].quotas
            if dict(heard) != wanted:
                world.loop.errors.append(
                    f"quota: {process} goes by {_words(heard)} a second after {_words(wanted)}"
                )
            world.count("quota in force")


def _words(quotas: Quotas) -> str:
    return ", ".join(f"{subject} {kind.value} {n}" for (subject, kind), n in quotas.items()) or "-"


@program("treasurer", host="qt")
def _treasurer(run: Run, host: str) -> Treasurer:
    made = Treasurer(run, host)
    made.watch = run.shared(_Watches).watch
    return made


class _Watches:
    """The run's watch, as its programs find it."""

    def __init__(self) -> None:
        self.watch: Watch | None = None


# --- the world


def _are_named(plan: Plan) -> bool:
    """Whether every program is a user of its own."""
    return Random(f"{plan.seed} users").random() < 0.5


@contextmanager
def metered(run: Run) -> Iterator[None]:
    """The world has quotas, and what passes is followed."""
    if TREASURER not in run.plan.clients:
        yield
        return
    with ExitStack() as stack:
        if "rights" not in run.plan.parts and _are_named(run.plan):
            stack.enter_context(with_identities(run))
        run.shared(_Watches).watch = stack.enter_context(watched(run))
        run.world.seen["world with quotas"] += 1
        yield


add_part(
    Part(
        name="quotas",
        help="users and topics have quotas, which change",
        add=with_quotas,
        leave_out=_without_upgrades,
        exchange=metered,
    )
)
