"""The last word of a process that must end."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Another thread meets the same failure, again and again, when this one ends the process.
PROGRAM = """
import logging, sys, threading, time
from semel.broker.replica import fatal

logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
stuck = threading.Event()

def meets_it_too():
    while True:
        try:
            raise OSError("the disk")
        except OSError:
            logging.exception("failed here as well")

def is_never_done():
    logging.getLogger().handlers[0].acquire()
    stuck.set()
    time.sleep(600)

threading.Thread(target=globals()[sys.argv[1]], daemon=True).start()
if sys.argv[1] == "is_never_done":
    fatal.OTHERS_S = 0.05
    stuck.wait()
else:
    time.sleep(0.02)
fatal.end_process("the log cannot be written")
"""


def ended(other: str) -> list[str]:
    """The lines of a process whose other thread does this."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, other], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.endswith("\n")
    return done.stderr.splitlines()


@pytest.mark.parametrize("attempt", range(5))
def test_the_reason_is_the_last_line_whatever_other_threads_log(attempt: int) -> None:
    lines = ended("meets_it_too")
    assert any("failed here as well" in line for line in lines)
    assert lines[-1] == "error: the log cannot be written"


def test_a_log_that_is_stuck_does_not_keep_the_process() -> None:
    assert ended("is_never_done") == ["error: the log cannot be written"]
