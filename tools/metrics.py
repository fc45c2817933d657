"""Generates docs/metrics.md and docs/grafana.json from the tables of the parts' probes.

    python -m tools.metrics

How it works. The page has one table per part. The dashboard has rows of panels, each with a title,
one of Grafana's units and one or two queries; `$group` is the dashboard's variable for broker
groups. A test compares both files with the output of this module, and every query with the tables
(`alerts.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from semel.protos.metrics import Metric
from tools.alerts import PARTS

DOCS: Final = Path(__file__).parent.parent / "docs"

_HEAD: Final = """\
# Metrics

Made by `python -m tools.metrics` from the tables in `broker/semel/broker/metric_table.py` and in
`probe.py` of the controller, the web console and the Kafka gateway; a test keeps it true.
[operations.md](operations.md#measure) says how Prometheus finds them; [grafana.json](grafana.json)
is a dashboard to import, and [alerts.md](alerts.md) says what to alert on, and what to do then.

*Master only* means that a group's master alone shows the metric, so that sums over nodes count
nothing twice. Counters begin at 0 with the process. Beside these every page has the standard
`process_*` figures (CPU, memory, open files).
"""


def page() -> str:
    """The text of docs/metrics.md."""
    return _HEAD + "".join(_section(*part) for part in PARTS)


def _section(title: str, common: Iterable[str], metrics: Iterable[Metric]) -> str:
    labels = ", ".join(f"`{label}`" for label in common)
    lines = [f"\n## {title}\n"]
    lines += [f"Labels of all of them: {labels}.\n"] if labels else []
    lines += ["| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        own = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {own} | {metric.text} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph; `queries` map a legend to an expression."""

    title: str
    unit: str
    queries: dict[str, str]
    stat: bool = False
    """True for a large figure instead of a graph."""
    red_from: float | None = None
    """The figure from which on it is shown in red: alert on it."""


def _rate(name: str, by: str = "node") -> str:
    return f'sum by ({by}) (rate({name}{{broker_group=~"$group"}}[1m]))'


def _quantile(share: float, name: str) -> str:
    inner = f'sum by (le) (rate({name}_bucket{{broker_group=~"$group"}}[1m]))'
    return f"histogram_quantile({share}, {inner})"


def _seconds(title: str, name: str) -> Panel:
    queries = {"p50": _quantile(0.5, name), "p99": _quantile(0.99, name)}
    return Panel(title=title, unit="s", queries=queries)


def _request_quantile(api: str) -> str:
    name = "semel_gateway_request_seconds_bucket"
    return f'histogram_quantile(0.99, sum by (le) (rate({name}{{api="{api}"}}[1m])))'


def _late_share() -> str:
    """The share of the released messages that came more than a second after their time."""
    name = "semel_broker_delayed_lateness_seconds"
    some = '{broker_group=~"$group"}'
    in_time = f'sum(rate({name}_bucket{{broker_group=~"$group",le="1.0"}}[5m]))'
    return f"1 - {in_time} / sum(rate({name}_count{some}[5m]))"


ROWS: Final[dict[str, list[Panel]]] = {
    "At a glance": [
        Panel(
            title="Groups without a master",
            unit="none",
            queries={"": "max(semel_controller_masterless_groups)"},
            stat=True,
        ),
        Panel(
            title="Under-replicated groups",
            unit="none",
            queries={"": "max(semel_controller_under_replicated_groups)"},
            stat=True,
        ),
        Panel(
            title="Damaged or lost entries",
            unit="none",
            queries={"": "sum(semel_broker_damaged_entries) + sum(semel_broker_lost_entries)"},
            stat=True,
        ),
        Panel(
            title="Least free disk",
            unit="percentunit",
            queries={"": "min(semel_broker_disk_free_bytes / semel_broker_disk_size_bytes)"},
            stat=True,
        ),
        Panel(
            title="Topics not finished",
            unit="none",
            queries={"": "max(semel_controller_unfinished_topics)"},
            stat=True,
        ),
        Panel(
            title="Delayed messages over 1 s late",
            unit="percentunit",
            queries={"": _late_share()},
            stat=True,
            red_from=0.01,
        ),
    ],
    "Traffic": [
        Panel(
            title="Messages stored",
            unit="cps",
            queries={"{{node}}": _rate("semel_broker_produced_messages_total")},
        ),
        Panel(
            title="Bytes stored",
            unit="Bps",
            queries={"{{node}}": _rate("semel_broker_produced_bytes_total")},
        ),
        Panel(
            title="Bytes fetched",
            unit="Bps",
            queries={"{{node}}": _rate("semel_broker_fetched_bytes_total")},
        ),
        Panel(
            title="Duplicates and refusals",
            unit="cps",
            queries={
                "duplicate batches": f"sum({_rate('semel_broker_dedup_hits_total')})",
                "refused batches": f"sum({_rate('semel_broker_refused_batches_total')})",
            },
        ),
    ],
    "Latency": [
        _seconds("Batch to acknowledgement", "semel_broker_produce_seconds"),
        _seconds("Sync of the log", "semel_broker_log_sync_seconds"),
        _seconds("Reading for a fetch", "semel_broker_fetch_seconds"),
    ],
    "Delayed messages": [
        Panel(
            title="Not due yet",
            unit="none",
            queries={
                "group {{broker_group}}": "sum by (broker_group)"
                ' (semel_broker_delayed_messages{broker_group=~"$group"})'
            },
        ),
        Panel(
            title="Released",
            unit="cps",
            queries={
                "{{node}}": _rate("semel_broker_delayed_lateness_seconds_count"),
            },
        ),
        _seconds("Lateness", "semel_broker_delayed_lateness_seconds"),
    ],
    "Older messages, compaction, memory": [
        Panel(
            title="Behind with the object store",
            unit="s",
            queries={"{{topic}}": "max by (topic) (semel_broker_tier_lag_seconds)"},
        ),
        Panel(
            title="Errors of the object store",
            unit="cps",
            queries={"{{node}}": _rate("semel_broker_tier_errors_total")},
        ),
        Panel(
            title="Not compacted yet",
            unit="percentunit",
            queries={"{{topic}}": "max by (topic) (semel_broker_compaction_dirty_ratio)"},
        ),
        Panel(
            title="Lost from memory",
            unit="none",
            queries={"{{topic}}": "max by (topic) (semel_broker_memory_lost_messages_total)"},
        ),
    ],
    "Consumers": [
        Panel(
            title="Lag",
            unit="none",
            queries={
                "{{consumer_group}} {{topic}}": "sum by (consumer_group, topic)"
                " (semel_broker_consumer_lag_messages)"
            },
        ),
        Panel(
            title="Locks held",
            unit="none",
            queries={"{{consumer_group}}": "sum by (consumer_group) (semel_broker_held_locks)"},
        ),
    ],
    "Kafka's clients": [
        Panel(
            title="Connections",
            unit="none",
            queries={"{{gateway}}": "sum by (gateway) (semel_gateway_connections)"},
        ),
        Panel(
            title="Records stored",
            unit="cps",
            queries={
                "{{gateway}}": "sum by (gateway) (rate(semel_gateway_produced_records_total[1m]))"
            },
        ),
        Panel(
            title="Time of requests",
            unit="s",
            queries={
                "produce p99": _request_quantile("produce"),
                "fetch p99": _request_quantile("fetch"),
            },
        ),
        Panel(
            title="Requests under way",
            unit="bytes",
            queries={"{{gateway}}": "sum by (gateway) (semel_gateway_request_bytes)"},
        ),
        Panel(
            title="Rebalances",
            unit="none",
            queries={
                "{{gateway}}": "sum by (gateway) (increase(semel_gateway_rebalances_total[5m]))"
            },
        ),
        Panel(
            title="Refused and broken connections",
            unit="cps",
            queries={
                "refused": "sum(rate(semel_gateway_refused_connections_total[5m]))",
                "broken": "sum(rate(semel_gateway_broken_connections_total[5m]))",
            },
        ),
    ],
    "Replication": [
        Panel(
            title="Under-replicated voters",
            unit="none",
            queries={
                "group {{broker_group}}": "max by (broker_group)"
                ' (semel_broker_under_replicated_voters{broker_group=~"$group"})'
            },
        ),
        Panel(
            title="Entries behind",
            unit="none",
            queries={
                "node {{peer}}": "max by (peer)"
                ' (semel_broker_peer_behind_entries{broker_group=~"$group"})'
            },
        ),
        Panel(
            title="Elections",
            unit="none",
            queries={
                "node {{node}}": "increase"
                '(semel_broker_elections_total{broker_group=~"$group"}[5m])'
            },
        ),
    ],
    "Nodes": [
        Panel(
            title="Log on disk",
            unit="bytes",
            queries={
                "node {{node}}": 'semel_broker_log_segment_bytes{broker_group=~"$group"}'
                " + semel_broker_log_kept_bytes"
            },
        ),
        Panel(
            title="Largest topics",
            unit="bytes",
            queries={"{{topic}}": "topk(10, sum by (topic) (semel_broker_topic_bytes))"},
        ),
        Panel(
            title="Resident memory",
            unit="bytes",
            queries={"{{instance}}": "process_resident_memory_bytes"},
        ),
        Panel(
            title="CPU",
            unit="percentunit",
            queries={"{{instance}}": "rate(process_cpu_seconds_total[1m])"},
        ),
    ],
}


def dashboard() -> str:
    """The text of docs/grafana.json."""
    shown = {
        "title": "Semel",
        "uid": "semel",
        "tags": ["semel"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "group",
                    "label": "Broker group",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": "label_values(semel_broker_info, broker_group)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": list(_panels()),
    }
    return json.dumps(shown, indent=1) + "\n"


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS.items():
        number += 1
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "gridPos": place, "panels": []}
        y += 1
        height = 4 if panels[0].stat else 8
        width = _WIDTH // len(panels)
        for column, panel in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "type": "stat" if panel.stat else "timeseries",
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": {"x": column * width, "y": y, "w": width, "h": height},
                "fieldConfig": {"defaults": _field(panel), "overrides": []},
                "targets": [
                    {"refId": chr(65 + i), "expr": expression, "legendFormat": legend}
                    for i, (legend, expression) in enumerate(panel.queries.items())
                ],
            }
        y += height


def _field(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.red_from is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_from}]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
    return found


def main() -> None:
    """Writes both files."""
    (DOCS / "metrics.md").write_text(page(), encoding="utf-8")
    (DOCS / "grafana.json").write_text(dashboard(), encoding="utf-8")


if __name__ == "__main__":
    main()
