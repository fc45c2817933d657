"""Wrong proofs: who is not listened to, and for how long."""

from __future__ import annotations

import pytest

from semel.gateway.principals import attempts
from semel.gateway.principals.attempts import FREE, MOST_S, QUIET_S, Attempts

HOST = "10.0.0.1"


def after(wrong: int, host: str = HOST) -> Attempts:
    made = Attempts()
    for _ in range(wrong):
        made.on_wrong(host, 0.0)
    return made


@pytest.mark.parametrize(
    ("wrong", "wait_s"), [(0, 0), (FREE - 1, 0), (FREE, 1), (FREE + 3, 8), (FREE + 50, MOST_S)]
)
def test_each_wrong_proof_doubles_the_wait(wrong: int, wait_s: float) -> None:
    counted = after(wrong)
    assert counted.wait_s(HOST, 0.0) == wait_s
    assert counted.wait_s(HOST, wait_s) == 0
    assert counted.wait_s("10.0.0.2", 0.0) == 0


def test_all_is_forgotten_after_a_quiet_time() -> None:
    counted = after(FREE + 50)
    assert counted.wait_s(HOST, QUIET_S) == 0
    counted.on_wrong(HOST, QUIET_S)
    assert counted.wait_s(HOST, QUIET_S) == 0


def test_addresses_of_one_subscriber_are_one() -> None:
    counted = after(FREE, "2001:db8::1")
    assert counted.wait_s("2001:db8::2", 0.0) > 0
    assert counted.wait_s("2001:db8:1::2", 0.0) == 0
    assert after(FREE, "::ffff:10.0.0.1").wait_s(HOST, 0.0) > 0
    assert after(FREE, "").wait_s("", 0.0) > 0


def test_hosts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "HOSTS_MAX", 2)
    counted = after(FREE)
    counted.on_wrong("10.0.0.2", 0.0)
    counted.on_wrong("10.0.0.3", 0.0)
    assert counted.wait_s(HOST, 0.0) == 0
