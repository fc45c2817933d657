"""franz-go's own tests that talk to a broker, from the Go module proxy.

Its package kgo has many tests without a broker, too: those say nothing about a gateway, and only
tests that open one of the test clients are run. `KGO_TEST_RF` is the factor of replication of their
topics, which the gateway ignores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.kit.verdicts import Verdict
from tests.soak.kafka_go import Go, Module, functions_of
from tests.soak.kafka_suites import Judged

MODULE: Final = Module(
    "github.com/twmb/franz-go", "v1.22.3", "h1:RHe35s34pKefMLyL+ZYJ6mQVtfFZz4zHDHVkTyACur0="
)
JUDGE: Final = f"franz-go {MODULE.version}"
_OPENS: Final = re.compile(r"newTestClient|testClientOpts|tmpTopic|tmpGroup|getSeedBrokers|adm\(\)")


def run(judged: Judged) -> Iterator[Verdict]:
    """Runs them. Raises Missing."""
    environment = {
        "KGO_SEEDS": judged.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(judged.records),
        "KGO_TEST_MAX_TOPIC_PARTS": "11",
        "KGO_LOG_LEVEL": "none",
    }
    if judged.chaos:
        environment["KGO_TEST_CHAOS"] = "1"
    go = Go(judged.place, environment)
    source = go.get(MODULE)
    tests = [
        name for name in talking(source / "pkg" / "kgo") if judged.only.lower() in name.lower()
    ]
    if tests:
        yield from go.test(JUDGE, f"{MODULE.path}/pkg/kgo", tests, "-timeout=50m")


def talking(package: Path) -> list[str]:
    """The tests of a package that open a test client."""
    return [
        name
        for file in sorted(package.glob("*_test.go"))
        for name, text in functions_of(file)
        if _OPENS.search(text)
    ]
