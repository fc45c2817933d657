"""Alert rules, runbook, dashboard and the programs' pages say the same of each other."""

from __future__ import annotations

import re

import pytest

from tests.kit.alert_cases import CASES
from tools import alerts
from tools.alerts import Alert, labels_left, labels_shown, unknown_names

RULES = alerts.alerts()


def test_rules_ask_for_what_the_programs_show() -> None:
    assert len(RULES) > 40
    assert unknown_names(alert.expression for alert in RULES) == set()


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("semel_broker_nothing_total > 0", {"semel_broker_nothing_total"}),
        ("semel_broker_log_sync_seconds > 0", {"semel_broker_log_sync_seconds"}),
        ('semel_broker_muted{nodes=~"1|2"} == 1', {"semel_broker_muted{nodes}"}),
        ('semel_broker_muted{node="1",role!="x"} == 1', {"semel_broker_muted{role}"}),
        ("sum by (job, topic) (semel_broker_muted)", {"topic"}),
        ("semel_broker_muted and on (le) semel_broker_info", {"le"}),
        (
            'rate(semel_broker_log_sync_seconds_count{le="1"}[5m])',
            {"semel_broker_log_sync_seconds_count{le}"},
        ),
    ],
)
def test_a_planted_mistake_is_found(planted: str, found: set[str]) -> None:
    assert unknown_names([planted]) == found


def test_labels_in_strings_and_series_are_told_apart() -> None:
    query = 'sum by (le) (semel_broker_log_sync_seconds_bucket{node="semel_broker_x(y=1)"})'
    assert unknown_names([query, 'up{job=~".*up.*"} == 0']) == set()


@pytest.mark.parametrize("alert", RULES, ids=lambda alert: alert.name)
def test_a_rule_is_whole(alert: Alert) -> None:
    assert alert.name.startswith("Semel")
    assert alert.labels.keys() == {"severity"}
    assert alert.labels["severity"] in alerts.SEVERITIES
    assert alert.annotations.keys() == {"summary", "runbook_url"}
    assert alert.annotations["runbook_url"] == f"alerts.html#{alert.name.lower()}"
    assert labels_shown(alert) <= labels_left(alert.expression)


def test_every_rule_has_its_paragraph_and_every_paragraph_its_rule() -> None:
    names = [alert.name for alert in RULES]
    assert len(set(names)) == len(names)
    paragraphs = alerts.paragraphs()
    assert list(paragraphs) == names, "in the order of the rules"
    for name, text in paragraphs.items():
        assert "**Look**" in text or "[Semel" in text, name
        assert "**Do**" in text or "**do**" in text, name


def test_the_runbook_names_metrics_that_exist() -> None:
    page = alerts.RUNBOOK.read_text(encoding="utf-8")
    named = re.findall(r"`(semel_\w+)`", page)
    known = alerts.known_series().keys()
    assert len(named) > 5
    assert {name for name in named if name not in known and f"{name}_bucket" not in known} == set()


def test_every_rule_is_fired_by_the_long_run() -> None:
    assert {case.alert for case in CASES if case.alert} == {alert.name for alert in RULES}
    assert any(not case.alert for case in CASES), "a healthy cluster"
    series = [name for case in CASES for name in case.series]
    assert unknown_names(series) == set()
