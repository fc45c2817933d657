"""A log shipper: follows a growing file, and each of its lines is stored exactly once.

    python examples/log_shipper.py /var/log/app.log --name web-3

How it works. The shipper takes the byte offset behind each line as the line's own rising number
(`source_positions`). The cluster knows how far each queue has come, so after any crash the shipper
begins at the lowest of these numbers, sends again, and what is stored is skipped. It keeps no file
of its own about where it was. A line without its end is not sent yet. A file that became shorter
was replaced: give the new one a name of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from semel.client import connect

CHUNK_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Ships a log file, each line once.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", required=True, help="durable name of this file's producer")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    parser.add_argument("--topic", default="logs")
    parser.add_argument("--once", action="store_true", help="end at the end of the file")
    arguments = parser.parse_args()

    with connect(arguments.bootstrap) as client:
        client.admin.create_topic(arguments.topic, queues=4, if_not_exists=True)
        with client.producer(arguments.name, source_positions=True) as producer:
            begin = max(producer.last_sequence(arguments.topic), 0)
            for lines, ends in follow(arguments.file, begin, once=arguments.once):
                producer.send_many(arguments.topic, lines, positions=ends)
                producer.flush()
                print(f"{arguments.file}: stored up to byte {ends[-1]}", flush=True)


def follow(path: Path, begin: int, *, once: bool) -> Iterator[tuple[list[bytes], list[int]]]:
    """Gives whole lines without their ends, and the byte offset behind each."""
    with path.open("rb") as file:
        position = begin
        while True:
            if path.stat().st_size < position:
                sys.exit(f"error: {path} is shorter than what was sent of it; use a new --name")
            file.seek(position)
            whole, end, _ = file.read(CHUNK_BYTES).rpartition(b"\n")
            if end:
                lines = whole.split(b"\n")
                ends = []
                for line in lines:
                    position += len(line) + 1
                    ends.append(position)
                yield lines, ends
            elif once:
                return
            else:
                time.sleep(0.2)


if __name__ == "__main__":
    main()
