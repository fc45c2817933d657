"""franz-go's own tests that talk to a broker, from the Go module proxy.

Its package kgo has many tests without a broker, too: those say nothing about a gateway, and only
tests that open one of the test clients are run. `KGO_TEST_RF` is the factor of replication of their
topics, which the gateway ignores.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.kit.maven import Missing
from tests.kit.verdicts import Outcome, Verdict
from tests.soak.kafka_suites import Judged

MODULE: Final = "github.com/twmb/franz-go"
VERSION: Final = "v1.22.3"
SUM: Final = "h1:RHe35s34pKefMLyL+ZYJ6mQVtfFZz4zHDHVkTyACur0="
"""The module's checksum, as go.sum has it."""
JUDGE: Final = f"franz-go {VERSION}"
_OPENS: Final = re.compile(r"newTestClient|testClientOpts|tmpTopic|tmpGroup|getSeedBrokers|adm\(\)")
_TEST: Final = re.compile(r"^func (Test\w+)\(")


def run(judged: Judged) -> Iterator[Verdict]:
    """Runs them. Raises Missing."""
    go = shutil.which("go")
    if go is None:
        raise Missing(
            "franz-go's tests need Go, and there is none on the PATH: install it (Debian: apt-get"
            " install golang-go)"
        )
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod",
        "KGO_SEEDS": judged.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(judged.records),
        "KGO_TEST_MAX_TOPIC_PARTS": "11",
        "KGO_LOG_LEVEL": "none",
    }
    if judged.chaos:
        environment["KGO_TEST_CHAOS"] = "1"

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [go, *arguments],
            cwd=judged.place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            raise Missing(f"go {' '.join(arguments)}: {said}")
        return done.stdout

    call("mod", "init", "judges.test")
    call("get", f"{MODULE}@{VERSION}")
    found = json.loads(call("mod", "download", "-json", f"{MODULE}@{VERSION}"))
    if found["Sum"] != SUM:
        raise Missing(f"{MODULE} {VERSION} is not what is pinned: {found['Sum']}")
    tests = [
        name
        for name in talking(Path(found["Dir"], "pkg", "kgo"))
        if judged.only.lower() in name.lower()
    ]
    if not tests:
        return
    command = [go, "test", "-json", "-count=1", "-timeout=50m", f"-run=^({'|'.join(tests)})$"]
    with subprocess.Popen(
        [*command, f"{MODULE}/pkg/kgo"],
        cwd=judged.place,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield from verdicts_of(process.stdout, tests)


def talking(package: Path) -> list[str]:
    """The tests of a package that open a test client."""
    names = []
    for file in sorted(package.glob("*_test.go")):
        for part in re.split(r"^(?=func )", file.read_text(encoding="utf-8"), flags=re.M):
            if (test := _TEST.match(part)) and _OPENS.search(part):
                names.append(test[1])
    return names


def verdicts_of(lines: Iterator[str] | list[str], tests: list[str]) -> Iterator[Verdict]:
    """The verdicts in what `go test -json` prints: of each test, or of its parts where it has
    some. A test that came to no end has failed."""
    outcomes: dict[str, Outcome] = {}
    said: dict[str, str] = {}
    actions = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.LEFT_OUT}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            text = event["Output"].strip()
            if re.match(r"\w+_test\.go:\d+: ", text):
                said.setdefault(name, text.partition(": ")[2])
        elif event["Action"] in actions:
            outcomes[name] = actions[event["Action"]]
    parents = {name.rpartition("/")[0] for name in outcomes}
    for name in tests:
        outcomes.setdefault(name, Outcome.FAILED)
    for name in sorted(outcomes):
        alone = name not in parents
        broken = outcomes[name] is Outcome.FAILED and not any(
            outcomes[other] is Outcome.FAILED for other in outcomes if other.startswith(f"{name}/")
        )
        if alone or broken:
            words = said.get(name, "") if outcomes[name] is not Outcome.PASSED else ""
            yield Verdict(JUDGE, name, outcomes[name], words)
