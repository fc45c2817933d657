"""`semel doctor`: what is wrong with a cluster, and what to do about it.

Not here: the checks (`diagnosis.py`), asking the cluster (`semel.client.admin.inspection`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from semel.console import render
from semel.console.options import client_options, examples, open_client
from semel.protos.errors import SemelError

if TYPE_CHECKING:
    from semel.client import Inspection
    from semel.console.diagnosis import Finding

STYLES: Final = {"error": "bold red", "warning": "yellow", "note": "dim"}


@click.command(
    epilog=examples(
        "semel doctor",
        "semel doctor --json | jq -r '.findings[].subject'",
        more="Looks at controllers, brokers, disks, clocks, versions, topics, consumer groups and"
        " producers, and changes nothing. Exit status 1 when there is a finding of severity error.",
    )
)
@client_options
def doctor(bootstrap: str, as_json: bool) -> int:
    """Checks the whole cluster and says what to do about each finding."""
    from semel.console.diagnosis import Finding, diagnose

    out = render.Output(as_json=as_json)
    try:
        with open_client(bootstrap) as client:
            found = client.admin.inspect_cluster(deep=True)
        findings = diagnose(found)
        looked = _looked_at(found)
        runtimes = _runtimes(found)
    except SemelError as error:
        looked, runtimes = {}, []
        findings = [
            Finding(
                severity="error",
                check="no-controller",
                subject=f"controllers at {bootstrap}",
                text=error.message,
                advice="start one, or name the right ones with --bootstrap; without a controller"
                " nothing else can be looked at. Producers and consumers that run go on",
            )
        ]
    healthy = not any(finding.severity == "error" for finding in findings)
    shown = {
        "healthy": healthy,
        "findings": [finding.as_dict() for finding in findings],
        "looked_at": looked,
        "runtimes": runtimes,
    }
    out.show(shown, _drawn(findings, looked, runtimes))
    return 0 if healthy else 1


def _looked_at(found: Inspection) -> dict[str, int]:
    return {
        "controller": len(found.controllers),
        "broker_group": len(found.status.groups),
        "broker": len(found.nodes),
        "topic": found.status.topics,
        "consumer_group": len(found.consumers),
        "named_producer": len(found.producers),
    }


def _runtimes(found: Inspection) -> list[dict[str, str]]:
    """The runtime of each program that reported it."""
    parts = [(f"controller {c.address}", c.version, c.runtime) for c in found.controllers]
    parts += [(f"broker {n.node}", n.version, n.runtime) for n in found.nodes]
    return [
        {"subject": subject, "version": version, "runtime": runtime}
        for subject, version, runtime in parts
        if runtime
    ]


def _drawn(findings: list[Finding], looked: dict[str, int], runtimes: list[dict[str, str]]) -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    for finding in findings:
        head = Text(f"{finding.severity}: ", STYLES[finding.severity])
        head.append(finding.subject, "bold").append(f" {finding.text}")
        parts.append(head)
        parts.append(Padding(Text(f"→ {finding.advice}"), (0, 0, 0, 2)))
    counts = ", ".join(
        render.plural(count, name.replace("_", " ")) for name, count in looked.items()
    )
    by_severity = Counter[str](finding.severity for finding in findings)
    verdict = ", ".join(
        render.plural(by_severity[kind], kind) for kind in STYLES if by_severity[kind]
    )
    parts.append(Text(verdict or "nothing to complain about", "bold"))
    parts += [Text(f"looked at {counts}", "dim")] if looked else []
    same: dict[str, list[str]] = {}
    for each in runtimes:
        same.setdefault(f"{each['runtime']}, Semel {each['version']}", []).append(each["subject"])
    parts += [Text(f"{', '.join(who)}: {what}", "dim") for what, who in same.items()]
    return Group(*parts)
