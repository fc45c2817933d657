"""A tier in a real S3 server: written and read, and every way in which a server refuses."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from semel.protos.errors import SemelError
from semel.tier import (
    QueueReader,
    Store,
    StoreLimits,
    TierDenied,
    TierMisconfigured,
    TierUnavailable,
    Wanted,
    add_rows,
    layout,
    newest_pointer,
    no_manifest,
    open_store,
    owner_of,
    queues_of,
    read_manifest,
    rows_of,
    topics_of,
)
from tests.kit.s3_server import CREDENTIALS, s3_server
from tests.kit.tier_rows import QUEUE, plain_rows
from tests.kit.tiered_topics import CLUSTER, expected, fill

QUICK = StoreLimits(connect_s=1, request_s=1, attempts=1, call_s=5)
ONCE = StoreLimits(attempts=1, call_s=60)
"""For servers that answer, on a machine that may be busy."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_server() as url:
            yield url


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """A prefix of its own for each test."""
    return server.replace("PREFIX", f"{request.node.name}/tier".translate({91: "-", 93: None}))


def readers(store: Store) -> list[QueueReader]:
    cluster = owner_of(store)
    found = []
    for topic in topics_of(store, cluster):
        for key in queues_of(store, cluster, topic.topic_id):
            pointer = newest_pointer(store, cluster, key)
            assert pointer is not None
            found.append(QueueReader(store, read_manifest(store, pointer)))
    return found


def test_a_tier_is_written_and_read(url: str) -> None:
    store = open_store(url)
    fill(store)
    rows = []
    for reader in readers(open_store(url)):
        manifest = reader.manifest
        for part in reader.rows(Wanted(start=manifest.start, end=manifest.end)):
            rows += [
                {"topic": manifest.topic, "queue": manifest.queue_id, **row}
                for row in part.to_pylist()
            ]

    def order(row: dict[str, object]) -> tuple[str, str, str]:
        return str(row["topic"]), str(row["queue"]), f"{row['offset']:09d}"

    assert sorted(rows, key=order) == sorted(expected("orders", "audit"), key=order)
    assert all(
        each.name.startswith(f"{CLUSTER}/") or each.name == layout.IDENTITY
        for each in store.objects("")
    )


def test_a_file_of_many_parts_is_uploaded_whole(url: str) -> None:
    """Above some MiB an upload to S3 consists of several parts."""
    store = open_store(url)
    rows = rows_of([plain_rows(1_000)])
    values = pa.array([os.urandom(25_000) for _ in range(1_000)], pa.binary())  # incompressible
    rows = rows.set_column(1, rows.schema.field("value"), values)
    change = add_rows(store, no_manifest("c", "orders", QUEUE, 0), rows)
    (entry,) = change.manifest.files
    assert entry.length > 20 << 20
    reader = QueueReader(store, change.manifest)
    assert reader.whole_file(entry).equals(rows)
    (part,) = reader.rows(Wanted(start=700, end=703), ["value"])
    assert part.to_pylist() == rows.slice(700, 3).select(["value"]).to_pylist()


def test_objects_are_listed_with_their_times(url: str) -> None:
    store = open_store(url)
    store.put("a/b", b"1")
    (found,) = store.objects("a")
    age = time.time() - found.modified_us / 1e6
    assert -2 < age < 60
    assert store.delete(["a/b"]) == 1
    assert store.objects("a") == []


# --- refusals -----------------------------------------------------------------------------------


def test_a_missing_bucket_is_said_at_once(url: str) -> None:
    with pytest.raises(TierMisconfigured, match="there is no bucket 'none'"):
        open_store(url.replace("tier-bucket", "none"))


def test_a_server_that_is_not_there_is_said_in_time(url: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        elsewhere = url.rpartition(":")[0] + f":{port}"
        began = time.monotonic()
        with pytest.raises(TierUnavailable, match="s3://tier-bucket"):
            open_store(elsewhere, QUICK)
    assert time.monotonic() - began < 30


def test_a_server_that_hangs_is_given_up_in_time(url: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # connections are made, and nobody answers
        elsewhere = url.rpartition(":")[0] + f":{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TierUnavailable):
            open_store(elsewhere, QUICK)
    assert time.monotonic() - began < 30


class _Refusing(BaseHTTPRequestHandler):
    """Answers every request with one status and one of S3's codes."""

    status = 403
    code = ""

    def answer(self) -> None:
        body = f"<Error><Code>{self.code}</Code><Message>because</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def refusing(status: int, code: str) -> Iterator[int]:
    """A server that refuses everything; yields its port."""
    handler = type("Handler", (_Refusing,), {"status": status, "code": code})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "code", "kind", "text"),
    [
        (403, "AccessDenied", TierDenied, "refused"),
        (403, "InvalidAccessKeyId", TierDenied, "refused"),
        (403, "SignatureDoesNotMatch", TierDenied, "refused"),
        (403, "RequestTimeTooSkewed", TierDenied, "clock"),
        (400, "ExpiredToken", TierDenied, "expired"),
        (404, "NoSuchBucket", TierMisconfigured, "no such bucket"),
        (503, "SlowDown", TierUnavailable, "writing"),
        (500, "InternalError", TierUnavailable, "writing"),
    ],
)
def test_what_a_server_refuses_says_who_can_help(
    url: str, status: int, code: str, kind: type[SemelError], text: str
) -> None:
    """With the store's own words, as Arrow passes them on."""
    with refusing(status, code) as port:
        filesystem = pafs.S3FileSystem(
            region="us-east-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        store = Store(filesystem, "tier-bucket/x", "s3://tier-bucket/x", ONCE)
        with pytest.raises(kind, match=text):
            store.put("object", b"1")


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_that_may_not_look_are_refused_when_the_tier_is_opened(
    url: str, status: int
) -> None:
    with refusing(status, "AccessDenied") as port:
        elsewhere = url.rpartition(":")[0] + f":{port}"
        with pytest.raises(TierDenied, match="check the credentials"):
            open_store(elsewhere, ONCE)
