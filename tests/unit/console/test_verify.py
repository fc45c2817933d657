"""What `semel verify` says and how it ends: proven, not proven, violated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from semel.client.admin.descriptions import VerifyResult
from semel.console import verify as module
from semel.console.main import run
from semel.protos.errors import Unavailable


def result(topic: str, *, duplicates: int = 0, unread: tuple[str, ...] = ()) -> VerifyResult:
    return VerifyResult(
        ok=not (duplicates or unread),
        topic=topic,
        messages=5,
        duplicates=duplicates,
        missing=0,
        queues=[],
        nodes_compared=3 - len(unread),
        problems=[],
        unread=list(unread),
    )


GOOD = result("good")
SILENT = result("silent", unread=("node 3 (h:3) was not read: it is dead",))
BAD = result("bad", duplicates=1, unread=("node 3 (h:3) was not read: it is dead",))


class FakeAdmin:
    """Has topics whose results are known; an error stands for one that cannot be verified."""

    def __init__(self, *results: VerifyResult | Unavailable) -> None:
        self._results = list(results)
        self.timeouts: list[float] = []

    def list_topics(self) -> list[Any]:
        return [SimpleNamespace(name=str(number)) for number in range(len(self._results))]

    def verify(self, name: str, *, timeout: float, tier: bool, on_progress: Any) -> VerifyResult:
        assert not tier
        self.timeouts.append(timeout)
        found = self._results[int(name)]
        if isinstance(found, Unavailable):
            raise found
        return found


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*results: VerifyResult | Unavailable) -> FakeAdmin:
        fake = FakeAdmin(*results)

        @contextmanager
        def connected(bootstrap: str) -> Iterator[Any]:
            yield SimpleNamespace(admin=fake)

        monkeypatch.setattr(module, "open_client", connected)
        return fake

    return use


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([GOOD, GOOD], 0),
        ([GOOD, SILENT], 1),
        ([BAD, SILENT], 5),
        ([SILENT, BAD, GOOD], 5),
        ([GOOD, Unavailable("no master")], 1),
        ([BAD, Unavailable("no master")], 5),
    ],
)
def test_the_status_tells_a_violation_from_what_is_only_not_proven(
    admin: Any, results: list[Any], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(*results)
    assert run(["verify", "--exactly-once"]) == status
    assert capsys.readouterr().err == (
        "error: no master\n" if isinstance(results[-1], Unavailable) else ""
    )


@pytest.mark.parametrize(
    ("found", "said", "verdict"),
    [
        (GOOD, "good: exactly once", "proven"),
        (SILENT, "silent: not proven, nothing contradicts it", "not proven"),
        (BAD, "bad: NOT exactly once", "violated"),
    ],
)
def test_the_words_are_those_of_the_verdict(
    admin: Any, found: VerifyResult, said: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(found)
    run(["verify", "--exactly-once"])
    text = capsys.readouterr().out
    assert text.startswith(said)
    assert all(reason in text for reason in found.unread)
    run(["verify", "--exactly-once", "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_the_time_limit_is_an_option(admin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake = admin(GOOD)
    run(["verify", "--exactly-once"])
    run(["verify", "--exactly-once", "--timeout", "2h"])
    assert fake.timeouts == [600.0, 7200.0]
    assert run(["verify", "--exactly-once", "--timeout", "soon"]) == 2
