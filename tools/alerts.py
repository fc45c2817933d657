"""The alert rules of deploy/prometheus, and what their queries and the dashboard's ask for.

How it works. A query is read just far enough to know which series it names, with which labels, and
which labels its aggregations keep. All of them must be in the tables from which the programs make
their pages.

Not here: whether a rule fires when it should (`./run soak promtool`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from semel.broker import metric_table as broker_metrics
from semel.controller import probe as controller_metrics
from semel.gateway import probe as gateway_metrics
from semel.protos.metrics import Metric
from semel.web import probe as web_metrics
from tools.source_tree import ROOT

RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yml"
RUNBOOK: Final = ROOT / "docs" / "alerts.md"
SEVERITIES: Final = ("critical", "warning", "info")
SUFFIXES: Final = ("_bucket", "_sum", "_count")
"""Suffixes of a histogram's series."""
TARGET: Final = frozenset({"job", "instance"})
"""Labels that Prometheus gives to all series of a target."""
STANDARD: Final = frozenset(
    {
        "up",
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)
"""Series of Prometheus itself and of prometheus-client."""

PARTS: Final[tuple[tuple[str, tuple[str, ...], tuple[Metric, ...]], ...]] = (
    ("Broker node", broker_metrics.COMMON, broker_metrics.METRICS),
    ("Controller", controller_metrics.COMMON, controller_metrics.METRICS),
    ("Web console", (), web_metrics.METRICS),
    ("Kafka gateway", gateway_metrics.COMMON, gateway_metrics.METRICS),
)
"""Each program's name, the labels of all of its samples, and its metrics."""

_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SERIES: Final = re.compile(r"\b((?:semel|process)_\w+|up)\b\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_KEPT: Final = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    expression: str
    labels: dict[str, str]
    annotations: dict[str, str]


def alerts() -> list[Alert]:
    """All rules of the file, in its order."""
    found: dict[str, Any] = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [
        Alert(rule["alert"], rule["expr"], rule["labels"], rule["annotations"])
        for group in found["groups"]
        for rule in group["rules"]
    ]


def paragraphs() -> dict[str, str]:
    """What the runbook says, by alert."""
    parts = re.split(r"^#{2,3} (.*)\n", RUNBOOK.read_text(encoding="utf-8"), flags=re.M)
    titled = zip(parts[1::2], parts[2::2], strict=True)
    return {title: text.strip() for title, text in titled if title.startswith("Semel")}


def known_series() -> dict[str, frozenset[str]]:
    """The labels of each series that the programs' pages may have, `job` and `instance` included.
    A histogram's own name is no series."""
    found = dict.fromkeys(STANDARD, TARGET)
    for _, common, metrics in PARTS:
        for metric in metrics:
            labels = TARGET | {*common, *metric.labels}
            if metric.kind != "histogram":
                found[metric.name] = labels
            else:
                found |= {metric.name + suffix: labels for suffix in SUFFIXES}
                found[f"{metric.name}_bucket"] = labels | {"le"}
    return found


def unknown_names(expressions: Iterable[str]) -> set[str]:
    """What queries ask for and no page has: series, labels of a series as `SERIES{LABEL}`, and
    labels that aggregations keep and that no series of the query has."""
    known, unknown = known_series(), set[str]()
    for expression in expressions:
        having: set[str] = set()
        for name, labels in _named(expression):
            if name not in known:
                unknown.add(name)
                continue
            unknown |= {f"{name}{{{label}}}" for label in labels - known[name]}
            having |= known[name]
        unknown |= kept_labels(expression) - having
    return unknown


def kept_labels(expression: str) -> set[str]:
    """The labels that aggregations and joins of a query name."""
    plain = _TEXT.sub('""', expression)
    return {
        label.strip()
        for found in _KEPT.findall(plain)
        for label in found.split(",")
        if label.strip()
    }


def _named(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The series that a query names, each with the labels that it compares."""
    without = _KEPT.sub("", _TEXT.sub('""', expression))
    for name, matchers in _SERIES.findall(without):
        yield name, set(_MATCHER.findall(matchers))


def labels_shown(alert: Alert) -> set[str]:
    """The labels that an alert's texts name."""
    return {
        label
        for text in alert.annotations.values()
        for label in re.findall(r"\$labels\.(\w+)", text)
    }


def labels_left(expression: str) -> set[str]:
    """The labels that an alert of this query may have: those of its aggregations, or else those of
    its series."""
    kept = set[str]()
    for found in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        kept |= {label.strip() for label in found.split(",")}
    if kept:
        return kept
    known = known_series()
    return {label for name, _ in _named(expression) for label in known.get(name, ())}
