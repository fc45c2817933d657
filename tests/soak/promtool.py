"""Alert rules and metrics before Prometheus' own tool: `./run soak promtool`.

How it works. promtool is built from its Go module in a temporary directory, or taken from
`--promtool`. It checks deploy/prometheus/rules.yml, and evaluates the rules over the figures of
`tests/kit/alert_cases.py`: exactly the alerts that a case names must fire. Then a cluster with TLS,
rules, a tier and a web console runs, gets some of everything, and promtool lints the page of each
of its programs. What the pages have, and with which labels, is compared with the tables.

It needs Go, and a Go module proxy for the first build (some minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from semel.client import Compaction, IdDedup, Security, connect
from semel.protos.security.identity import any_node
from tests.kit.alert_cases import CASES, IN_OFFICE, Case
from tests.kit.up_process import UpProcess
from tools.alerts import PARTS, RULES, STANDARD, known_series

MODULE: Final = "github.com/prometheus/prometheus"
VERSION: Final = "v0.316.0"
FIRING: Final = 'count by (alertname) (ALERTS{alertstate="firing"})'


class Missing(Exception):
    """The machine lacks what is needed."""


def build(directory: Path) -> Path:
    """Builds promtool, without the ways to discover targets, which are most of it."""
    go = shutil.which("go")
    if go is None:
        raise Missing(
            "promtool is built with Go, and there is none on the PATH: install Go (Debian: apt-get"
            " install golang-go), or name a promtool with --promtool"
        )
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod",
        "GOPATH": str(directory / "go"),
        "GOCACHE": str(directory / "cache"),
        "CGO_ENABLED": "0",
    }
    for arguments in (
        ["mod", "init", "promtool.test"],
        ["get", f"{MODULE}/cmd/promtool@{VERSION}"],
        ["build", "-tags", "remove_all_sd", "-o", "promtool", f"{MODULE}/cmd/promtool"],
        ["clean", "-modcache"],  # its files are read-only, and would stay
    ):
        done = subprocess.run(
            [go, *arguments], cwd=directory, env=environment, capture_output=True, text=True
        )
        if done.returncode and arguments[0] != "clean":
            raise Missing(f"go {' '.join(arguments)} failed:\n{done.stderr[-2_000:]}")
    return directory / "promtool"


def run(promtool: Path, *arguments: str, given: bytes | None = None) -> str:
    """Runs promtool; returns what it says. Raises AssertionError if it finds a fault."""
    done = subprocess.run(
        [str(promtool), *arguments], input=given, capture_output=True, check=False
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, f"promtool {' '.join(arguments)}:\n{said}"
    return said


def as_test(case: Case) -> dict[str, Any]:
    """A case as promtool takes it."""
    series = {**({IN_OFFICE: "1x2000"} if case.in_office else {}), **case.series}
    firing = [*([case.alert] if case.alert else []), *case.also]
    return {
        "name": case.title,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": FIRING,
                "eval_time": f"{case.minute}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(firing)
                ],
            }
        ],
    }


def check_rules(promtool: Path, directory: Path) -> None:
    """The rules are rules, and each fires when it should and not otherwise."""
    said = run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    print(said.strip())
    tests = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    path = directory / "cases.json"  # JSON is YAML
    path.write_text(json.dumps({**tests, "tests": [as_test(case) for case in CASES]}))
    run(promtool, "test", "rules", str(path))
    print(f"{len(CASES)} cases: each alert fires when it should, and no other")
    wrong = [as_test(Case(alert="SemelNoMaster", series={}, minute=5))]
    path.write_text(json.dumps({**tests, "tests": wrong}))
    with contextlib.suppress(AssertionError):
        run(promtool, "test", "rules", str(path))
        raise SystemExit("promtool finds no fault in a case that is wrong")


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[dict[str, bytes]]:
    """The pages of the programs of a cluster in which something has happened."""
    (directory / "tier").mkdir()
    options = ("--secure", "--authorization", "--brokers", "1", "--web", "0")
    with UpProcess(directory / "up", *options, "--tier", f"file://{directory}/tier") as up:
        ready = next(event for event in up.events if event["event"] == "ready")
        files = Path(ready["ca"]).parent / "admin"
        with connect(up.bootstrap, security=Security.read(files), keep_routes=False) as client:
            admin = client.admin
            admin.create_topic("orders", queues=2, dedup=IdDedup(window_bytes=1 << 20))
            admin.create_topic("tiered", queues=1, tier_after_ms=3_600_000)
            admin.create_topic("memory", queues=1, storage="memory", memory_bytes=16 << 20)
            admin.create_topic("latest", queues=1, compaction=Compaction())
            admin.set_quotas("topic:orders", {"write-bytes": 1 << 20, "messages": 1_000})
            with client.producer("loader") as producer:
                for number in range(100):
                    producer.send("orders", b"x" * 100, key=str(number), message_id=str(number))
                for topic in ("tiered", "memory", "latest"):
                    producer.send(topic, b"x", key="k")
            with client.consumer("billing", ["orders"]) as consumer:
                consumer.poll(10, 10.0)
                consumer.commit()
                context = ssl.create_default_context(cafile=str(files / "ca.pem"))
                context.load_cert_chain(files / "cert.pem", files / "key.pem")
                name = any_node(ready["cluster_id"])
                pages = {
                    f"{node.kind} {node.id}": secure_page(node.metrics, context, name)
                    for node in up.nodes
                }
        for path in ("livez", "metrics"):  # what was asked for before is counted on the page
            with urllib.request.urlopen(f"{ready['web']}{path}", timeout=30) as answer:
                pages["web console"] = answer.read()
        yield pages


def secure_page(address: str, context: ssl.SSLContext, name: str) -> bytes:
    """The page of a node whose certificate is checked for `name`, as Prometheus does."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    with contextlib.closing(connection):
        connection.connect()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=name)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        return answer.read()


def check_pages(promtool: Path, pages: dict[str, bytes]) -> None:
    """Each page passes the linter and has what the tables say."""
    known, met = known_series(), set[str]()
    for name, page in pages.items():
        said = run(promtool, "check", "metrics", given=page).strip()
        assert not said, f"the page of {name}:\n{said}"
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                if not sample.name.startswith("semel_"):
                    continue
                assert set(sample.labels) <= known[sample.name], sample
                met.add(sample.name)
        print(f"{name}: {page.count(b'# TYPE ')} metrics, no fault")
    listed = {metric.name for _, _, metrics in PARTS for metric in metrics}
    met |= {name.removesuffix("_count") for name in met}
    print(f"{len(listed & met)} of the {len(listed)} metrics of the tables are on these pages")
    missing = sorted(listed - met)
    print(f"not there, as nothing made them: {', '.join(missing)}")
    assert STANDARD - {"up"} <= {
        sample.name
        for family in text_string_to_metric_families(next(iter(pages.values())).decode())
        for sample in family.samples
    }


def main(arguments: list[str]) -> int:
    """Runs all checks; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak promtool", description=__doc__)
    parser.add_argument("--promtool", type=Path, help="use this one instead of building it")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="semel-promtool-") as directory:
        place = Path(directory)
        try:
            promtool = chosen.promtool or build(place)
        except Missing as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(run(promtool, "--version").splitlines()[0])
        check_rules(promtool, place)
        with cluster(place) as pages:
            check_pages(promtool, pages)
    return 0
