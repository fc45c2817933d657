"""What is mutated, and which tests have to notice.

A target names files of the product and the tests that are run against their mutants; a test that
does not execute the changed line is left out for that mutant. Tests of whole processes are no part
of this: they take seconds each, and what only they notice deserves a test of its own.

`tests/sim` enters with a few seeds (`few_seeds.py`), and so do the simulated clusters
(`few_worlds.py`), for what has no pure core: the client's threads, the duties of masters and of
controllers. Their full runs would only kill more.
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
    """Files and tests, relative to the repository; a folder stands for all its files. A test named
    behind a "!" is left out."""

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
            "tests/unit/raft",
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
        tests=("tests/unit/log", "tests/known_bugs"),
    ),
    "state": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "producers",
                "judge",
                "results",
                "parking",
                "expired",
                "queues",
                "spec",
                "splits",
            )
        ),
        tests=("tests/unit/state", "tests/known_bugs/test_produce.py"),
    ),
    "features": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "moves",
                "slices",
                "staging",
                "coordination",
                "transactions",
                "delays",
                "locks",
                "lock_clock",
                "log_clock",
            )
        ),
        tests=("tests/unit/state", "tools/mutation/few_worlds.py"),
    ),
    "duties": Target(
        files=tuple(
            f"{_BROKER}/{name}.py"
            for name in (
                "replica",
                "proposer",
                "standing",
                "founding",
                "identity",
                "members",
                "membership",
                "snapshots",
                "snapshot_pull",
                "repair",
                "verdict",
                "maintenance",
                "moving",
                "delays",
                "transactions",
                "group_calls",
                "confirmed_reads",
                "core_log",
                "watchers",
                "routes_copy",
                "log/kernel_sync",
                "log/log",
            )
        ),
        tests=(
            "tests/unit/broker",
            "tests/unit/replication",
            "tests/unit/server",
            "tests/unit/log",
            "tools/mutation/few_worlds.py",
        ),
    ),
    "producers": Target(
        files=(
            f"{_CLIENT}/core",
            *(
                f"{_CLIENT}/{name}.py"
                for name in (
                    "producer",
                    "producer_topic",
                    "intake",
                    "lanes",
                    "splits",
                    "session",
                    "identity",
                    "memory",
                    "wire",
                    "streams",
                    "staging",
                    "transaction_core",
                    "transaction_work",
                )
            ),
        ),
        tests=_CLIENT_TESTS,
    ),
    "consumers": Target(
        files=tuple(
            f"{_CLIENT}/{name}.py"
            for name in (
                "consumer",
                "locks",
                "commits",
                "outstanding",
                "pulling",
                "feed_queue",
                "fetch",
                "beginnings",
                "membership",
                "progress",
                "offsets",
                "resets",
                "sql_offsets",
                "transactions",
                "retrying",
                "relay",
                "redriving",
            )
        ),
        tests=_CLIENT_TESTS,
    ),
    "controller": Target(
        files=tuple(
            f"{_CONTROLLER}/{name}.py"
            for name in (
                "balance",
                "groups",
                "memberships",
                "producers",
                "registry",
                "brokers",
                "liveness",
                "placement",
                "preference",
                "moves",
                "splits",
                "topics",
                "duty",
                "succession",
                "office",
            )
        ),
        tests=("tests/unit/controller", "tools/mutation/few_worlds.py"),
    ),
}
