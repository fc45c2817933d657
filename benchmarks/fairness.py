"""A greedy user beside a modest one on a saturated broker group: what share the greedy one gets.

How it works. Some programs of one user and one program of another send as fast as they are let, all
with TLS and `--authorization`, to a group of one broker. A share is that of the bytes that were
stored while all of them ran. The same is done with all programs of one user, whom nothing divides:
it shows what share the greedy programs take by their number. Figures are shares, so they say
something on a busy machine, too; `busy` is the part of a core that the broker used, which must be
near 1 for the group to be saturated.

    python -m benchmarks.fairness [--rounds 3] [--seconds 5] [--greedy 4]

Not here: quotas, which hold without another user, too (tests/integration/test_quotas.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from benchmarks.harness import (
    Contender,
    Target,
    arguments,
    compare,
    number,
    report,
    require_disk,
    temporary_directory,
)
from benchmarks.produce import RETENTION_BYTES
from semel.client import connect
from semel.protos.security.identity import ADMIN, Identity
from tests.kit.cluster import CLUSTER_ID
from tests.kit.secure_cluster import SecureCluster

TWO: Final = "two users"
ONE: Final = "one user"
TOPIC: Final = "shared"
Told = list[tuple[float, int]]


class RuledCluster(SecureCluster):
    """One broker and one controller that check the rules."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, brokers=1, broker_flags=("--authorization",))
        self.security = self.security_of(Identity(ADMIN, "admin", CLUSTER_ID))

    def _controller_flags(self) -> list[str]:
        return ["--authorization"]


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def stored(told: Told, start_s: float, end_s: float) -> float:
    """Bytes that were stored between two times, by what a program has told."""

    def at(when_s: float) -> float:
        before = max((each for each in told if each[0] <= when_s), default=told[0])
        after = min((each for each in told if each[0] >= when_s), default=told[-1])
        if after[0] == before[0]:
            return before[1]
        part = (when_s - before[0]) / (after[0] - before[0])
        return before[1] + part * (after[1] - before[1])

    return at(end_s) - at(start_s)


def run(
    cluster: RuledCluster, users: Sequence[str], directories: Mapping[str, Path], seconds: float
) -> dict[str, float]:
    """One program for each of `users`, the last of which is the modest one."""
    programs: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        for user in users:
            command = [sys.executable, "-m", "benchmarks.fairness_client", cluster.bootstrap]
            command += [str(directories[user]), TOPIC, str(seconds + 2)]
            program = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(program)
            stack.callback(program.kill)
            programs.append(program)
        for program in programs:
            if _output(program).readline() != "ready\n":
                raise RuntimeError("a program of the benchmark has failed")
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        time.sleep(1)  # until all of them have filled what may be in flight
        used_s, began_s = cpu_s(cluster.brokers[0].pid), time.monotonic()
        time.sleep(seconds)
        ended_s = time.monotonic()
        busy = (cpu_s(cluster.brokers[0].pid) - used_s) / (ended_s - began_s)
        told: list[Told] = [json.loads(_output(program).readline()) for program in programs]
    got = [stored(each, began_s, ended_s) for each in told]
    return {
        "greedy_share": sum(got[:-1]) / sum(got),
        "mb_s": sum(got) / (ended_s - began_s) / 1e6,
        "busy": busy,
    }


def _output(program: subprocess.Popen[str]) -> IO[str]:
    assert program.stdout is not None
    return program.stdout


def main() -> int:
    """Command line."""
    parser = arguments("Measure what share of a saturated broker group a greedy user gets.")
    parser.add_argument(
        "--greedy", type=number(1, 32), default=4, help="programs of the greedy user"
    )
    options = parser.parse_args()
    require_disk(parser, options.data, 4 * RETENTION_BYTES + (8 << 30))
    with temporary_directory(options.data) as data, RuledCluster(data) as cluster:
        authority = cluster.authority
        directories = {
            user: authority.write(authority.client(user)) for user in ("greedy", "modest")
        }
        with connect(cluster.bootstrap, security=cluster.security, keep_routes=False) as client:
            client.admin.create_topic(TOPIC, queues=8, retention_bytes=RETENTION_BYTES)
            client.admin.change_access_rules(add=[f"allow * * topic:{TOPIC}"])
            greedy = ["greedy"] * options.greedy
            contenders = []
            for name, last in ((TWO, "modest"), (ONE, "greedy")):
                users = [*greedy, last]
                timed = functools.partial(run, cluster, users, directories, options.seconds)
                contenders.append(Contender(name=name, run=timed))
            comparison = compare(
                f"{options.greedy} programs of a greedy user beside one of another, one broker",
                contenders,
                rounds=options.rounds,
                warm_ups=options.warm_ups,
                targets=[Target(contender=TWO, metric="greedy_share", at_most=0.6)],
            )
    return report(comparison, options)


if __name__ == "__main__":
    raise SystemExit(main())
