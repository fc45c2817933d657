"""What `./run soak promtool` says without Go, and what it gives to promtool."""

from __future__ import annotations

import pytest

from tests.kit.alert_cases import CASES, HEALTHY
from tests.soak import promtool


def test_without_go_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nothing/is/here")
    assert promtool.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: promtool is built with Go, and there is none on the PATH")
    assert len(said.splitlines()) == 1


def test_a_case_names_all_alerts_that_fire_and_no_other() -> None:
    [healthy] = promtool.as_test(HEALTHY)["promql_expr_test"]
    assert healthy["exp_samples"] == []
    [both] = [case for case in CASES if case.also]
    [asked] = promtool.as_test(both)["promql_expr_test"]
    assert [each["labels"] for each in asked["exp_samples"]] == [
        '{alertname="SemelCertificateExpires"}',
        '{alertname="SemelCertificateExpiresSoon"}',
    ]
    assert len({case.title for case in CASES}) == len(CASES)
