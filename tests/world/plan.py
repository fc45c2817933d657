"""The plan that a seed makes: machines, programs, the weather, and which faults strike when.

How it works. A plan is drawn before the run: which faults this seed exaggerates, and a list of
steps, each with its time and its own random number. A shorter list is a valid plan too, so a
failing run can be shrunk.

Some bugs show only when several things happen in a row, which chance alone brings about too rarely:
an entry that is never committed must be answered, *and* asked for twice, *and* be replaced. A
*theme* is such a row, on top of a few of the seed's own steps. Each came from a planted bug that
the worlds did not find (`planted.py`).

A plan gets *parts* on top when they are asked for (queues that move, transactions, ...), each in a
module of its own (`parts/`).

Not here: what a step does (`nemesis.py`), making a plan smaller (`shrink.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

NODES_MAX = 7
"""Brokers that a run ever starts."""
_WEEK_MS = 7 * 24 * 3_600_000

FAULTS: dict[str, int] = {
    "kill": 10,
    "kill master": 8,
    "power cut": 8,
    "crash in operation": 28,
    "all lose power": 2,
    "stop": 6,
    "stop master": 6,
    "partition": 10,
    "isolate master": 6,
    "one-way cut": 8,
    "heal": 14,
    "disk stall": 6,
    "disk error": 9,
    "disk full": 6,
    "rot": 12,
    "misdirected write": 12,
    "lost directory": 1,
    "wall clock jump": 4,
    "planned restart": 7,
    "controller crash": 3,
    "controller crash in a write": 5,
    "brief topic": 4,
    "client crash": 10,
    "client stop": 5,
    "member stop": 5,
    "checkpoint": 6,
    "long absence": 6,
    "expiry": 8,
    "two masters": 3,
    "long stop of the master": 3,
    "member unheard": 4,
    "zombie": 3,
    "fence all": 2,
    "replace node": 3,
    "grow": 2,
    "transfer": 7,
    "drain": 3,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One fault."""

    at_s: float
    """After the start of the load."""
    kind: str
    chance: int
    """Seed of its choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a seed decides."""

    seed: int
    size: int
    """Founding nodes of the first broker group."""
    steps: tuple[Step, ...]
    duration_s: float
    loss: float
    repeat: float
    slow: float
    latency_max_s: float
    sync_max_s: float
    clients: tuple[str, ...]
    lines: int
    """Number of lines in each loader's source."""
    send_mean_s: float
    send_timeout_ms: int
    victim: int
    """The node whose disk may rot."""
    segment_bytes: int
    checkpoint_records: int
    retention_bytes: int
    """Retention of the topic; 0 for none."""
    producers_max: int
    """Rows of a queue's sequence table."""
    producer_idle_ms: int
    queues: int
    cache_bytes: int
    lock_ms: int
    value_bytes: int
    """Size to which messages are padded."""
    checkpoint_keep: int
    skew: float
    """Skew of the nodes' clock rates."""
    streams: bool
    """Replicas talk by streams of bytes, as in production; else by datagrams, which may be lost,
    repeated and reordered."""
    kernel_bytes: int
    """Groups of writes up to this size are synced by the kernel, for the event loop; larger ones by
    the log's thread. 0: all of them, no kernel does."""
    system_calls_vary: bool = True
    """True when writes and reads do a part only, and the loop hears late of the kernel's syncs."""
    remove_max_s: float = 0.0
    """How long a disk takes to remove a file of the log; large ones take long on some."""
    controllers: int = 1
    lease_s: float = 0.0
    """Seconds for which each of several controllers believes the store's last answer."""
    more_groups: tuple[int, ...] = ()
    """Founding nodes of each broker group behind the first."""
    parts: tuple[str, ...] = ()
    """Names of its parts (`registry.py`)."""

    @property
    def groups(self) -> tuple[int, ...]:
        """Founding nodes of each broker group."""
        return (self.size, *self.more_groups)


Theme = Callable[[Plan, Random], Plan]


def _themed(plan: Plan, random: Random, steps: list[tuple[float, str]], **changes: object) -> Plan:
    """The plan with these steps, a few of its own, and other settings."""
    own = [step for step in plan.steps if random.random() < 0.15]
    themed = [Step(round(at, 6), kind, random.getrandbits(32)) for at, kind in steps]
    end = max(at for at, _ in steps) + 0.2
    return replace(
        plan,
        steps=tuple(sorted([*own, *themed], key=lambda step: step.at_s)),
        duration_s=max(plan.duration_s, end),
        **changes,  # type: ignore[arg-type]
    )


_USUAL: Mapping[str, object] = {
    "clients": ("loader 1", "sender 1", "sender 2", "member 1"),
    "producers_max": 100,
    "producer_idle_ms": _WEEK_MS,
}
"""Settings of a theme that is about the nodes: usual clients, and no producer expires."""


def _deposed(plan: Plan, random: Random) -> Plan:
    """A master is cut off from its group and goes on taking what clients send, some of it twice,
    until the others have elected another one: it must not have promised anything of that. There are
    few clients, because a master without a group takes two entries at most."""
    at = random.uniform(0.1, 0.4)
    return _themed(
        plan,
        random,
        [(at, "two masters"), (at + 1.3, "heal")],
        size=max(plan.size, 3),
        clients=("hasty 1", "hasty 2", "watcher 1"),
        producers_max=100,
        producer_idle_ms=_WEEK_MS,
        send_mean_s=0.04,
    )


def _deposed_without_room(plan: Plan, random: Random) -> Plan:
    """A master is cut off while another one is elected, and has no room for the new term when it
    hears of it: its entries of the meantime are stored nowhere, and others take their place."""
    at = random.uniform(0.1, 0.4)
    heard = at + random.uniform(0.6, 0.95)
    steps = [(at, "two masters"), (at + 0.01, "no room for votes"), (heard, "heal")]
    return _themed(
        plan,
        random,
        steps,
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.04,
        loss=0.0,
    )


def _asleep(plan: Plan, random: Random) -> Plan:
    """A master sleeps while another one is elected and writes. When it wakes, clients' questions
    wait, and no word of its peers has come: what it knows is out of date."""
    at = random.uniform(0.1, 0.3)
    return _themed(
        plan,
        random,
        [(at, "two masters"), (at + 0.01, "long stop of the master"), (at + 2.3, "heal")],
        size=max(plan.size, 3),
        clients=("watcher 1", "watcher 2", "doubter 1", "sender 1", "sender 2", "member 1"),
        producers_max=100,
        producer_idle_ms=_WEEK_MS,
        send_mean_s=0.04,
        loss=0.0,
        skew=0.0,
    )


def _late_commits(plan: Plan, random: Random) -> Plan:
    """Commits of consumers wait on the way until other consumers hold their locks."""
    at = random.uniform(0.2, 0.4)
    return _themed(
        plan,
        random,
        [(at, "member unheard"), (at + 1.1, "heal"), (at + 1.2, "member unheard"), (2.6, "heal")],
        clients=("member 1", "member 2", "sender 1", "sender 2"),
        send_mean_s=0.04,
        lock_ms=200,
    )


def _checkpoints(plan: Plan, random: Random) -> Plan:
    """Nodes write checkpoints in quick succession and cut their logs; then all lose power."""
    steps = [(random.uniform(0.1, 1.0), "checkpoint") for _ in range(6)]
    steps += [(0.5 + random.uniform(0, 0.6), "all lose power") for _ in range(2)]
    return _themed(
        plan,
        random,
        steps,
        **_USUAL,
        checkpoint_records=5,
        retention_bytes=1_500,
        value_bytes=800,
        segment_bytes=16_384,
    )


def _page_cache(plan: Plan, random: Random) -> Plan:
    """A master that was cut off learns of a later term, and dies while it saves that. Syncs fail
    everywhere. All start again on what the page cache has, and then the power fails: all terms,
    votes and entries that they have believed must be on the disk by then."""
    at = random.uniform(0.1, 0.3)
    steps = [(at, "two masters"), (at + 0.01, "strike in a vote"), (at + 1.2, "heal")]
    at += random.uniform(1.3, 1.6)
    for _ in range(4):
        steps.append((at, random.choice(("failing syncs", "failing syncs", "crash in operation"))))
        at += random.uniform(0.05, 0.3)
        if random.random() < 0.4:
            steps.append((at, "all lose power"))
            at += random.uniform(0.1, 0.4)
    steps.append((at, "all lose power"))
    return _themed(
        plan,
        random,
        steps,
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.03,
    )


def _lost_disk(plan: Plan, random: Random) -> Plan:
    """One node is away while entries are committed; then another one loses its disk, and the master
    its links: the nodes that are left must not decide without what the lost disk had promised."""
    at = random.uniform(0.1, 0.3)
    return _themed(
        plan,
        random,
        [
            (at, "long absence"),
            (at + 0.5, "lost directory"),
            (at + 0.52, "isolate master"),
            (at + 2.1, "heal"),
        ],
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.04,
    )


def _late_rot(plan: Plan, random: Random) -> Plan:
    """A disk rots when nobody reads it any more: only a scrub can find the damage."""
    at = random.uniform(0.8, 1.2)
    return _themed(
        plan,
        random,
        [(at + 0.01 * number, "rot") for number in range(6)],
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.04,
        retention_bytes=0,
        cache_bytes=32 << 20,
    )


def _rotten_tail(plan: Plan, random: Random) -> Plan:
    """A write of a slave lands elsewhere, the third node never gets the entry, and the master loses
    its own copy with its power: if that slave is the next master, it has a damaged entry that
    nobody can give."""
    at = random.uniform(0.1, 0.3)
    steps: list[tuple[float, str]] = []
    for number in range(3):
        began = at + 0.5 * number
        lost = began + random.uniform(0.03, 0.08)
        steps += [(began, "misdirected only copy"), (lost, "power cut of the master")]
        steps += [(began + 0.4, "heal")]
    return _themed(
        plan,
        random,
        steps,
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.02,
        sync_max_s=0.03,
        latency_max_s=0.002,
        cache_bytes=0,
    )


NEEDS_PEERS = frozenset({"rot", "misdirected write", "lost directory"})
"""Faults after which a node's peers must know what it has lost."""


def _left_behind(plan: Plan, random: Random) -> Plan:
    """A disk rots while its node is away and the others clean their logs: nobody can give the
    entries that the node has yet to apply."""
    at = random.uniform(0.1, 0.5)
    steps = [(at + 0.01 * number, "rot") for number in range(4)]
    steps += [(at + 0.05, "long absence"), (at + 1.3, "rot"), (at + 1.35, "power cut")]
    steps += [(at + later, "checkpoint") for later in (0.06, 0.4, 0.8)]
    return _themed(
        plan,
        random,
        [*steps, (2.6, "heal")],
        size=3,
        victim=random.randrange(1, 4),
        **_USUAL,
        send_mean_s=0.03,
        checkpoint_records=8,
        retention_bytes=1_500,
        value_bytes=800,
        segment_bytes=16_384,
        remove_max_s=0.2,
    )


def _hidden(plan: Plan, random: Random) -> Plan:
    """In a secured world, a topic is hidden from who has batches on their way, again and again."""
    at, steps = random.uniform(0.1, 0.3), []
    for _ in range(8):
        steps.append((at, "hidden while batches wait"))
        at += random.uniform(0.5, 0.7)
    return _themed(plan, random, steps, **_USUAL, send_mean_s=0.01, latency_max_s=0.002)


def _moved_on(plan: Plan, random: Random) -> Plan:
    """A node comes back to a group that has none of the members any more that it knows."""
    at = random.uniform(0.1, 0.4)
    steps = [(at, "all others replaced"), (at + 3.2, "checkpoint")]
    return _themed(plan, random, steps, size=3, victim=random.randrange(1, 4), **_USUAL)


THEMES: dict[str, Theme] = {
    "asleep": _asleep,
    "checkpoints": _checkpoints,
    "deposed": _deposed,
    "deposed without room": _deposed_without_room,
    "hidden": _hidden,
    "late commits": _late_commits,
    "late rot": _late_rot,
    "left behind": _left_behind,
    "lost disk": _lost_disk,
    "moved on": _moved_on,
    "page cache": _page_cache,
    "rotten tail": _rotten_tail,
}
_DRAWN = ("asleep", "checkpoints", "deposed", "late commits", "lost disk")
"""The themes from which seeds draw. A longer list would change the runs of all seeds, so the other
themes are for tests that name them."""


def make_plan(seed: int, theme: str | None = None) -> Plan:
    """The plan of a seed: swarm testing, every seed leaves some faults out.

    One in five has a theme; all have `theme` if it is given.
    """
    plan = _draw(seed)
    random = Random(seed * 2 + 2)
    if theme is None and random.random() < 0.2:
        theme = random.choice(_DRAWN)
    return plan if theme is None else THEMES[theme](plan, random)


def _draw(seed: int) -> Plan:
    random = Random(seed * 2 + 1)
    duration = random.choice((0.5, 0.8, 1.2, 1.8))
    weights = {kind: weight * random.choice((0, 0, 1, 1, 2, 5)) for kind, weight in FAULTS.items()}
    weights["heal"] = max(weights["heal"], 10)
    size = random.choices((1, 3, 5), (8, 84, 8))[0]
    if size == 1:  # nobody else has what it loses
        weights |= dict.fromkeys(("rot", "misdirected write", "lost directory"), 0)
        weights["grow"] = max(weights["grow"], 20)
    expiring = random.random() < 0.3
    weights["expiry"] = 20 if expiring else 0
    every = random.choice((0.06, 0.1, 0.16, 0.25))
    steps: list[Step] = []
    at = random.uniform(0, 0.3)
    while at < duration:
        kind = random.choices(list(weights), list(weights.values()))[0]
        steps.append(Step(round(at, 6), kind, random.getrandbits(32)))
        at += random.uniform(0, 2 * every)
    # Rows end here while their producers are busy. A loader that dies then has lost what tells it
    # where to resume, and reads what is stored: so nothing may be trimmed.
    forgetful = expiring and random.random() < 0.5
    clients = ["sender 3" if expiring and not forgetful else "loader 1", "sender 1", "member 1"]
    clients += [
        name
        for name, share in (
            ("loader 2", 0 if expiring else 0.25),
            ("sender 2", 0.25),
            ("hasty 1", 0.3),
            ("doubter 1", 0.4),
            ("member 2", 0.4),
            ("watcher 1", 0.6),
        )
        if random.random() < share
    ]
    return Plan(
        seed=seed,
        size=size,
        steps=tuple(steps),
        duration_s=duration,
        loss=random.choice((0.0, 0.01, 0.05)),
        repeat=random.choice((0.0, 0.0, 0.05)),
        slow=random.choice((0.0, 0.02, 0.1)),
        latency_max_s=random.choice((0.002, 0.005, 0.02)),
        sync_max_s=random.choice((0.002, 0.006, 0.03)),
        clients=tuple(clients),
        lines=random.choice((8, 16, 30)),
        send_mean_s=random.choice((0.04, 0.08, 0.15)),
        send_timeout_ms=random.choice((800, 3000, 20_000)),
        victim=random.randrange(1, size + 1),
        segment_bytes=random.choice((16_384, 16_384, 24_576)),
        checkpoint_records=random.choice((5, 10, 60)),
        retention_bytes=0 if forgetful else random.choice((0, 1_500, 4_000)),
        producers_max=1 if expiring else 100,
        producer_idle_ms=random.choice((100, 400)) if expiring else _WEEK_MS,
        queues=random.choice((1, 2, 2, 3)),
        cache_bytes=random.choice((0, 4_096, 32 << 20)),
        lock_ms=random.choice((200, 500, 1_000)),
        value_bytes=random.choice((0, 0, 300, 800)),
        checkpoint_keep=random.choice((1, 2)),
        skew=random.choice((0.0, 0.01, 0.05)),
        streams=random.random() < 0.5,
        kernel_bytes=random.choice((0, 700, 64 << 10, 64 << 10)),
        remove_max_s=random.choice((0.0, 0.0, 0.0, 0.1)),
    )


def with_steps(plan: Plan, steps: Iterable[Step]) -> Plan:
    """The plan with these steps added, each at its time."""
    return replace(plan, steps=tuple(sorted((*plan.steps, *steps), key=lambda step: step.at_s)))


def with_clients(plan: Plan, clients: Iterable[str]) -> Plan:
    """The plan with these clients added, each once."""
    return replace(plan, clients=tuple(dict.fromkeys((*plan.clients, *clients))))


def without_clients(plan: Plan, *kinds: str) -> Plan:
    """The plan without clients of these kinds."""
    kept = (name for name in plan.clients if name.split()[0] not in kinds)
    return replace(plan, clients=tuple(kept))


def draw_groups(plan: Plan, random: Random, choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Founding nodes of each broker group: those of the plan, if another part has given it several
    already, so that all parts of a world mean the same groups."""
    drawn = random.choice(choices)
    return plan.groups if plan.more_groups else drawn


def over_groups(
    plan: Plan,
    random: Random,
    groups: tuple[int, ...],
    steps: Iterable[Step],
    clients: Sequence[str],
) -> Plan:
    """The plan over these broker groups with these steps and clients added, and without the client
    that knows the first group only."""
    old = [step for step in plan.steps if max(groups) > 1 or step.kind not in NEEDS_PEERS]
    first = 1 if groups[0] > 1 else 1 + groups[0]
    kept = [name for name in plan.clients if name.split()[0] != "hasty" and name not in clients]
    return replace(
        plan,
        steps=tuple(sorted((*old, *steps), key=lambda step: step.at_s)),
        duration_s=plan.duration_s + 0.8,
        size=groups[0],
        more_groups=groups[1:],
        victim=random.randrange(first, first + max(groups)),
        clients=(*kept, *clients),
    )
