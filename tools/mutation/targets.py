"""The targets of mutation: files of the product, and the tests that must notice their mutants.

A target names files of the product and the tests that are run against their mutants; a test that
does not execute the changed line is left out for that mutant. Tests of whole processes are not
included: they take seconds each, and a mutant that only they notice deserves a test of its own.

`tests/sim` takes part with a few seeds (`few_seeds.py`), and so do the simulated clusters
(`few_worlds.py`), for code without a pure core: the client's threads, and the background work of
masters and controllers. Their full runs would only kill more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_BROKER: Final = "broker/semel/broker"
_CLIENT: Final = "client/semel/client"
_CONTROLLER: Final = "controller/semel/controller"


@dataclass(frozen=True, slots=True)
class Target:
    """Files and tests, relative to the repository; a folder stands for all its files.

    A test behind a "!" is left out.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[Path]:
        """The Python files, without those that only re-export. Raises FileNotFoundError."""
        found: list[Path] = []
        for name in self.files:
            path = ROOT / name
            if not path.exists():
                raise FileNotFoundError(path)
            found += sorted(path.glob("*.py")) if path.is_dir() else [path]
        return [path for path in found if path.name != "__init__.py"]


_CLIENT_TESTS: Final = (
    "tests/unit/client",
    "!tests/unit/client/test_java.py",  # starts processes
    "tools/mutation/few_worlds.py",
)

TARGETS: Final = {
    "raft": Target(
        files=(f"{_BROKER}/raft",),
        tests=(
            "tests/unit/broker/raft",
            "tests/scenarios",
            "tests/known_bugs/test_raft.py",
            "tools/mutation/few_seeds.py",
        ),
    ),
    "log": Target(
        files=tuple(
            f"{_BROKER}/log/{name}.py"
            for name in (
                "recovery",
                "segment",
                "hard_state",
                "checkpoint",
                "writer",
                "active",
                "index",
            )
        ),
        tests=("tests/unit/broker/log", "tests/known_bugs"),
    ),
    "state": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "apply/producers",
                "admission/admission",
                "admission/queues",
                "apply/results",
                "admission/parking",
                "apply/expired",
                "apply/queues",
                "admission/pending",
                "apply/splits",
            )
        ),
        tests=("tests/unit/broker/state", "tests/known_bugs/test_produce.py"),
    ),
    "features": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "apply/moves",
                "apply/slices",
                "apply/staging",
                "apply/coordination",
                "apply/transactions",
                "apply/delays",
                "admission/transactions",
                "admission/delays",
                "apply/locks",
                "lock_clock",
                "log_clock",
            )
        ),
        tests=("tests/unit/broker/state", "tools/mutation/few_worlds.py"),
    ),
    "duties": Target(
        files=tuple(
            f"{_BROKER}/{name}.py"
            for name in (
                "replica/replica",
                "replica/driver",
                "replica/applier",
                "replica/mastership",
                "replica/feature_levels",
                "replica/log_time",
                "replica/peers",
                "replica/term_and_vote",
                "replica/proposer",
                "membership/status",
                "membership/asking",
                "membership/founding",
                "identity",
                "replica/member_book",
                "membership/changes",
                "snapshots/checkpoints",
                "snapshots/install",
                "snapshots/records",
                "snapshots/service",
                "snapshots/pull",
                "repair/repair",
                "repair/decision",
                "background/retention",
                "background/checkpointing",
                "background/lock_expiry",
                "background/producer_expiry",
                "background/full_disk",
                "background/queue_copy",
                "background/delayed_release",
                "background/transactions",
                "control_plane/group_calls",
                "replica/confirmed_reads",
                "replica/log_view",
                "replica/fetch_waiters",
                "control_plane/route_cache",
                "log/kernel_sync",
                "log/log",
            )
        ),
        tests=(
            "tests/unit/broker",
            "!tests/unit/broker/raft",
            "!tests/unit/broker/state",
            "tools/mutation/few_worlds.py",
        ),
    ),
    "producers": Target(
        files=(
            f"{_CLIENT}/core",
            *(
                f"{_CLIENT}/{name}.py"
                for name in (
                    "producer/producer",
                    "producer/topic",
                    "producer/intake",
                    "producer/lanes",
                    "producer/split_lanes",
                    "session",
                    "producer/identity",
                    "producer/memory",
                    "transport/produce_stream",
                    "transport/streams",
                    "transactions/staging",
                    "transactions/commit",
                    "api/transaction_work",
                )
            ),
        ),
        tests=_CLIENT_TESTS,
    ),
    "consumers": Target(
        files=tuple(
            f"{_CLIENT}/{name}.py"
            for name in (
                "consumer/consumer",
                "consumer/locks",
                "consumer/commits",
                "reading/outstanding",
                "reading/pulling",
                "reading/feed_queue",
                "reading/fetch",
                "consumer/start_offsets",
                "consumer/membership",
                "admin/progress",
                "reading/offsets",
                "admin/resets",
                "consumer/sql_offsets",
                "api/sql_transaction",
                "dead_letters/retrying",
                "dead_letters/relay",
                "dead_letters/redrive",
            )
        ),
        tests=_CLIENT_TESTS,
    ),
    "controller": Target(
        files=tuple(
            f"{_CONTROLLER}/{name}.py"
            for name in (
                "groups/balance",
                "groups/group",
                "groups/memberships",
                "producers",
                "brokers/registry",
                "brokers/calls",
                "brokers/liveness",
                "topics/placement",
                "brokers/preference",
                "moves/moves",
                "moves/table",
                "topics/splits",
                "topics/table",
                "topics/topics",
                "active/active_controller",
                "active/succession",
                "epoch",
            )
        ),
        tests=("tests/unit/controller", "tools/mutation/few_worlds.py"),
    ),
}
