"""A real S3 server in a process of its own, with one bucket, for tests of the tier.

How it works. It is moto's server: it speaks S3 over HTTP, keeps objects in memory, and knows
nothing of Semel. The process prints its port and ends with its standard input.

Not here: stores that fail (`faulty_store.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

BUCKET = "tier-bucket"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "example",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server(NamedTuple):
    """A server that runs."""

    url: str
    """The URL of a tier in its bucket, less the prefix's name: put a path in place of `PREFIX`."""
    pid: int

    def pause(self) -> None:
        """From now on it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def s3_server() -> Iterator[str]:
    """Starts the server and yields its URL. Its clients need CREDENTIALS in their environment."""
    with running_s3_server() as server:
        yield server.url


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """The same with a handle of the server."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.kit.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{port}"
        yield S3Server(f"s3://{BUCKET}/PREFIX?{options}", process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def main() -> None:
    """The server's process."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=BUCKET)
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
