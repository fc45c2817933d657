"""A Spark application on a secured cluster, in every way to say who it is; a process of its own.

`python -m tests.spark.logged_in DIRECTORY`: `DIRECTORY/plan.json` says what to do. All that Spark
shows of it goes to `DIRECTORY/shown`: plans, progress, every page of its web pages, its event log;
its log goes to stderr. A line of stdout has what was found, as JSON behind `FOUND`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import threading
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semel.client import connect
from semel.client.client_file import read
from semel.spark_connector import spark_session
from tests.kit.spark_engine import patiently

PAGES_MAX = 40
FOUND = "found: "


def main() -> None:
    directory = Path(sys.argv[1])
    plan = json.loads((directory / "plan.json").read_text())
    shown = directory / "shown"
    (shown / "events").mkdir(parents=True)
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (shown / "events").as_uri(),
    }
    found: dict[str, Any] = {}
    with spark_session("logged in", **settings) as spark:
        spark.sparkContext.setLogLevel("INFO")
        for name, options in plan["reads"].items():
            frame = table(spark, plan["topic"], options)
            found[name] = patiently(frame.count)
            print(f"read {name}", file=sys.stderr, flush=True)
            explain(frame, shown / f"read-{name}")
        for name, options in plan["writes"].items():
            frame = spark.range(0, plan["rows"], 1, 1).selectExpr("cast(id as string) as value")
            writer = frame.write.format("semel").options(topic=plan["written"], **options)
            patiently(writer.mode("append").save)
            print(f"wrote {name}", file=sys.stderr, flush=True)
            found[name] = plan["rows"]
        found["stream"] = copy(spark, plan, directory, shown)
        save_pages(spark.sparkContext.uiWebUrl or "", shown)
    print(FOUND + json.dumps(found), flush=True)


def table(spark: SparkSession, topic: str, options: dict[str, str]) -> DataFrame:
    # With a schema `load` asks nobody; the value is fetched by a task.
    source = spark.read.schema("value binary, offset long").format("semel")
    return source.options(subscribe=topic, **options).load().filter("length(value) > 0")


def explain(frame: DataFrame, path: Path) -> None:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    path.write_text(told.getvalue() + repr(frame))


def copy(spark: SparkSession, plan: dict[str, Any], directory: Path, shown: Path) -> dict[str, Any]:
    """Copies what somebody sends for a while to another topic, longer than a login lasts; the
    token's file gets another token meanwhile."""
    options, seconds = plan["stream"], plan["stream_s"]
    source = spark.readStream.schema("value binary, offset long").format("semel")
    frame = source.options(subscribe=plan["topic"], startingOffsets="latest", **options).load()
    writer = (
        frame.select("value")
        .writeStream.format("semel")
        .options(topic=plan["copy"], checkpointLocation=str(directory / "checkpoint"), **options)
        .trigger(processingTime="1 second")
    )

    def started() -> StreamingQuery:
        """The query, once its start is fixed."""
        query = writer.start()
        while not query.recentProgress:
            if query.awaitTermination(1):
                raise RuntimeError("the query ended")
        return query

    query = patiently(started)
    try:
        sent = send(plan, seconds)
        wanted = sent
        while sum(each.numInputRows for each in query.recentProgress) < wanted:
            query.awaitTermination(1)
        told = [each.json for each in query.recentProgress]
        (shown / "progress").write_text("\n".join([*told, str(query.status), repr(query)]))
        plans = io.StringIO()
        with contextlib.redirect_stdout(plans):
            query.explain(extended=True)
        (shown / "query").write_text(plans.getvalue())
    finally:
        query.stop()
    return {"sent": sent, "triggers": len(told)}


def send(plan: dict[str, Any], seconds: float) -> int:
    """Sends a message every 50 ms for so long, by a program with a certificate."""
    file = read(Path(plan["certified"]))
    stop, sent = threading.Event(), 0
    with (
        connect(file.bootstrap, security=file.security, keep_routes=False) as client,
        client.producer() as producer,
    ):
        while sent * 0.05 < seconds:
            producer.send(plan["topic"], b"late %d" % sent).result(timeout=30)
            sent += 1
            stop.wait(0.05)
            if sent == round(seconds / 0.1):
                Path(plan["token_file"]).write_text(Path(plan["next_token"]).read_text())
    return sent


def save_pages(url: str, shown: Path) -> None:
    """All of Spark's own pages that links lead to, and what its API tells."""
    waiting = deque(["/", "/environment/", "/SQL/", "/StreamingQuery/", "/jobs/", "/stages/"])
    api = urllib.request.urlopen(f"{url}/api/v1/applications", timeout=60).read()
    for application in json.loads(api):
        base = f"/api/v1/applications/{application['id']}"
        waiting += [f"{base}/environment", f"{base}/sql?details=true&planDescription=true"]
    seen: dict[str, bytes] = {}
    while waiting and len(seen) < PAGES_MAX:
        path = waiting.popleft()
        if path in seen:
            continue
        try:
            seen[path] = urllib.request.urlopen(url + path, timeout=60).read()
        except OSError:
            seen[path] = b""
            continue
        if "/api/" not in path:
            links = re.findall(rb'href="(?:%s)?(/[^"#]*)"' % re.escape(url.encode()), seen[path])
            waiting += [link.decode().replace("&amp;", "&") for link in links]
    pages = [b"== %s\n%s" % (path.encode(), page) for path, page in seen.items()]
    (shown / "pages").write_bytes(b"\n".join(pages))


if __name__ == "__main__":
    main()
