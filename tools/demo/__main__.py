"""`./run demo [FILE]`: options, the temporary directory, signals, the exit status."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from semel.console import render
from semel.protos.errors import SemelError
from tools.demo.picture import draw
from tools.demo.play import play
from tools.demo.proof import Figures, judge, table
from tools.demo.stage import DemoFailed, Stage


def main() -> int:
    """Plays the demo once and returns the exit status: 0 proven, 1 not, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="A real cluster takes a file exactly once through a killed master and a killed"
        " loader; a consumer group and Spark read it back.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="loaded line by line; default: the sources of Python's own standard library",
    )
    parser.add_argument(
        "--picture", type=Path, metavar="SVG", help="write the proof as a picture to this file, too"
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    scratch = Path(tempfile.mkdtemp(prefix="semel-demo-"))
    stage = Stage(scratch)
    stage.adopt_orphans()
    try:
        return _verdict(play(stage, arguments.file), arguments.picture)
    except KeyboardInterrupt:
        return 130
    except (SemelError, DemoFailed) as error:
        render.error(str(error))
        return 1
    except OSError as error:
        render.error(render.os_error(error))
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # only a short clean-up follows
        stage.clear()
        shutil.rmtree(scratch, ignore_errors=True)


def _verdict(figures: Figures, picture: Path | None) -> int:
    """Shows the proof and returns the exit status."""
    lines = judge(figures)
    render.Output(as_json=False).draw(table(lines))
    if picture is not None:
        draw(lines, picture)
    wrong = [line.name for line in lines if line.good is False]
    if wrong:
        render.error(f"the proof failed: {', '.join(wrong)}")
    return 1 if wrong else 0


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
