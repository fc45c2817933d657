"""Celery with Semel as its broker: pictures are made smaller by workers, which may be killed.

    python examples/thumbnails.py worker --output small             # as many as you like
    python examples/thumbnails.py send *.ppm                        # work for them
    python examples/thumbnails.py send --in 60 *.ppm                # work for a minute from now

How it works. Importing `semel.contrib.kombu` makes `semel://` an address of a broker. A task is
acknowledged when it is done, so what a killed worker had is done by another one; it writes the same
file again, which does no harm. A picture that cannot be read is a dead letter of the queue. Delays
are the cluster's: no worker holds a task that is not due.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Reject

import semel.contrib.kombu  # noqa: F401 - makes semel:// known

QUEUE = "thumbnails"
app = Celery("thumbnails")
app.conf.update(
    broker_url=f"semel://{os.environ.get('SEMEL_BOOTSTRAP', '127.0.0.1:7070')}",
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
)


@app.task(bind=True)
def shrink(self: Task, path: str) -> None:
    """Makes a picture a quarter of its size, as a file in the worker's output directory."""
    try:
        picture = halved(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise Reject(f"{path}: {error}", requeue=False) from error
    target = Path(os.environ["THUMBNAILS"]) / Path(path).name
    unfinished = target.with_suffix(f".{self.request.id}")
    unfinished.write_bytes(picture)
    unfinished.rename(target)


def halved(data: bytes) -> bytes:
    """Every second pixel of every second line of a binary PPM. Raises ValueError."""
    fields = data.split(maxsplit=4)
    if len(fields) != 5 or fields[0] != b"P6" or fields[3] != b"255":
        raise ValueError("no binary PPM of 8 bits")
    width, height = int(fields[1]), int(fields[2])
    pixels = data[len(data) - 3 * width * height :]
    if len(pixels) != 3 * width * height or not pixels:
        raise ValueError("it is cut off")
    lines = []
    for line in range(0, height, 2):
        begin = 3 * width * line
        lines += [pixels[begin + 3 * x : begin + 3 * x + 3] for x in range(0, width, 2)]
    return b"P6\n%d %d\n255\n" % ((width + 1) // 2, (height + 1) // 2) + b"".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes pictures smaller, by workers of Celery.")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="do the work")
    worker.add_argument("--output", type=Path, default=Path("small"))
    worker.add_argument("--name", default=f"thumbnails-{os.getpid()}")
    send = commands.add_parser("send", help="send work")
    send.add_argument("pictures", type=Path, nargs="+")
    send.add_argument("--in", dest="seconds", type=float, help="seconds to wait before")
    arguments = parser.parse_args()
    if arguments.bootstrap:
        app.conf.broker_url = f"semel://{arguments.bootstrap}"
    if arguments.command == "worker":
        arguments.output.mkdir(exist_ok=True)
        os.environ["THUMBNAILS"] = str(arguments.output)
        app.worker_main(["worker", "--pool=solo", "-n", arguments.name, "--loglevel=WARNING"])
    else:
        for picture in arguments.pictures:
            shrink.apply_async((str(picture.resolve()),), countdown=arguments.seconds)
        print(f"sent {len(arguments.pictures)} pictures")


if __name__ == "__main__":
    main()
