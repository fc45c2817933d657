"""Topics whose older messages go to an object store, while nodes and the store fail.

Files are small and merged soon, what the store has is soon forgotten, and garbage is old after a
second, so masters change at every step of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from semel.broker.background import tier_garbage, tiering
from semel.broker.tiers import cold_reads, place
from semel.controller.topics import rules
from semel.protos.errors import SemelError
from semel.protos.v1 import control_pb2
from semel.tier import GarbagePolicy, TierPolicy, changes
from tests.world import (
    archivists,  # noqa: F401
    nodes,
)
from tests.world import run as run_module
from tests.world.folded import InvariantError
from tests.world.nemesis import Nemesis
from tests.world.object_store import URL, ObjectStore
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, random_of
from tests.world.run import Run
from tests.world.tier_checks import READER_S, WORK_S, TierChecks

FEW_PARTS: Final = 5
_FAULTS: Final = (
    *("kill master",) * 3,
    *("store down", "store down", "store denies", "store full"),
    *("old manifest",) * 4,
    *("stop master", "long stop of the master"),
    *("checkpoint", "client crash", "kill", "heal", "two masters"),
    *("all lose power", "planned restart", "transfer", "wall clock jump", "long absence"),
)


def with_tiers(plan: Plan) -> Plan:
    random = random_of(plan, "tiers")
    steps = [
        Step(round(random.uniform(0.3, plan.duration_s + 2.5), 6), kind, random.getrandbits(32))
        for kind in random.choices(_FAULTS, k=random.choice((3, 6, 10)))
    ]
    longer = replace(with_steps(plan, steps), duration_s=plan.duration_s + 2.5)
    return with_clients(
        longer, ("archivist 1", "outsider 1", "janitor 1", "sender 1", "sender 2", "follower 1")
    )


@contextmanager
def _small_and_watched(run: Run) -> Iterator[None]:
    random = random_of(run.plan, "sizes of tiers")
    rate = random.choice((0.0, 0.03, 0.1))
    rates = {what: rate * random.choice((0, 1, 1, 2)) for what in ("put", "read", "delete", "list")}
    store = ObjectStore(run, random_of(run.plan, "object store"), rates)
    checks = run.shared(TierChecks)
    checks.world, checks.store = run.world, store
    store.on_delete = partial(_on_delete, run, checks)
    config: dict[str, Any] = {
        "tier": URL,
        "tier_facts_ms": 0,  # nobody restores a world
        "tier_check_ms": random.choice((40, 150, 400)),
        "tier_file_bytes": random.choice((600, 3_000, 20_000)),
        "tier_wait_ms": random.choice((50, 200, 600)),
        "tier_bytes_max": random.choice((1_000, 1 << 20)),
        "tier_collect_ms": random.choice((200, 700)),
        "tier_cache_bytes": random.choice((1, 1 << 20)),
        "tier_read_ms": random.choice((100, 1_000)),
    }
    if len(run.plan.parts) > FEW_PARTS:  # many messages, and one file is written at a time
        config |= {"tier_file_bytes": 20_000, "tier_bytes_max": 1 << 20}
    settings = {
        "tier_after_ms": random.choice((1, 100, 400)),
        "local_retention_ms": random.choice((1, 1, 300, 1_000, -1)),
        # Where rows end, loaders read what is stored: nothing may be trimmed.
        "retention_ms": random.choice((-1, -1, 2_000)) if run.plan.retention_bytes else -1,
    }
    if "upgrades" in run.plan.parts:
        settings = {}  # programs that are to be upgraded do not know them
    policy = GarbagePolicy(reader_us=int(READER_S * 1e6), work_us=int(WORK_S * 1e6))
    sizes = partial(TierPolicy, merge_files=random.choice((2, 3, 8)))
    with ExitStack() as stack:
        for target, name, value in (
            (run_module, "broker_config", partial(nodes.broker_config, **config)),
            (rules, "complete_settings", _tiered(rules.complete_settings, settings)),
            (place, "open_store", store.open),
            # Processes of a world share the module: a thread that waits may be that of a dead one.
            (place, "_THREADS", SimpleNamespace(run=partial(_begin, run), busy=0)),
            (place, "RETRY_MIN_S", 0.05),
            (place, "RETRY_MAX_S", 0.3),
            (tiering, "RETRY_MIN_S", 0.05),
            (tiering, "RETRY_MAX_S", 0.3),
            (tiering, "WORK_S", WORK_S),
            (tiering, "TierPolicy", sizes),
            (tier_garbage, "LOOK_S", 0.1),
            (tier_garbage, "GarbagePolicy", lambda: policy),
            (cold_reads, "FAILED_MS", 50),
            (changes, "PAGE_FILES", random.choice((2, 3, 256))),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield


def _begin(run: Run, call: Callable[[], None]) -> None:
    """Each call to the store has a simulated thread."""
    run.world.threads.Thread(target=call, name="tier").start()


def _on_delete(run: Run, checks: TierChecks, name: str) -> None:
    try:
        checks.on_delete(name)
    except InvariantError as error:
        run.groups[0].invariants.demand(False, str(error))


def _tiered(complete: Callable[..., Any], settings: dict[str, int]) -> Callable[..., Any]:
    """All topics are tiered that may be. Only of those that are trimmed anyway old messages go."""

    def complete_settings(given: Any) -> Any:
        found = complete(given)
        if not (found.HasField("compaction") or found.storage):
            retention_ms = found.retention_ms
            found.MergeFrom(type(found)(**settings))
            if given.retention_bytes <= 0:
                found.retention_ms = retention_ms
        return found

    return complete_settings


def _strike_store(nemesis: Nemesis, what: str) -> None:
    store = nemesis.run.shared(TierChecks).store
    assert store is not None
    setattr(store, what, nemesis.world.now + nemesis.random.choice((0.1, 0.5, 3.0)))
    nemesis.world.fault(what)


for _kind, _what in (
    ("store down", "down_until"),
    ("store denies", "denied_until"),
    ("store full", "full_until"),
):
    fault(_kind)(partial(_strike_store, what=_what))


@fault("old manifest")
def propose_old_manifest(nemesis: Nemesis) -> None:
    """A record of some time ago comes again, as from a master that slept: the log must not take
    it."""
    checks = nemesis.run.shared(TierChecks)
    host = nemesis.master()
    if not checks.records or host is None or host.replica is None or host.context is None:
        return
    replica = host.replica
    record = control_pb2.ControlRecord(tiered=nemesis.random.choice(checks.records[-3:]))

    async def propose() -> None:
        try:
            await replica.submit_control(record)
        except SemelError as error:
            nemesis.world.count(f"old manifest: {type(error).__name__}")

    nemesis.world.loop.call_soon(
        lambda: nemesis.world.loop.create_task(propose()), context=host.context
    )


add_part(
    Part(
        name="tiers",
        help="older messages go to an object store, which fails",
        add=with_tiers,
        exchange=_small_and_watched,
    )
)
