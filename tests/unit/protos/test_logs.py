"""The log as JSON: every line one object, an event with a name, fields with their types."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from typing import Any

import pytest

from semel.protos.errors import DiskFull
from semel.protos.event_names import LIBRARY, NAMES, UNNAMED
from semel.protos.logs import JsonLines, read_template, reason_in
from semel.protos.seldom import Seldom


def line_of(text: object, *arguments: object, name: str = "semel.x", **extra: Any) -> Any:
    """The object that a log call of a logger makes."""
    record = logging.LogRecord(name, logging.INFO, __file__, 1, text, arguments, None)
    for key, value in extra.items():
        setattr(record, key, value)
    written = JsonLines("broker-2").format(record)
    assert "\n" not in written
    assert written.isascii()
    return json.loads(written)


def test_a_line_has_an_event_and_the_fields_of_the_call() -> None:
    line = line_of("learner added node=%d address=%s", 4, "h:1", created=1_700_000_000.25)
    assert line == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "INFO",
        "process": "broker-2",
        "logger": "semel.x",
        "event": "learner_added",
        "message": "learner added node=4 address=h:1",
        "node": 4,
        "address": "h:1",
    }


@pytest.mark.parametrize(
    ("template", "phrase", "fields"),
    [
        ("caught up", "caught up", ()),
        ("scrub done pass=%d seconds=%.1f", "scrub done", ("pass", "seconds")),
        ("disk full, nobody takes mastership: %s", "disk full, nobody takes mastership", ("",)),
        ("a (odd) 100%% of it x=%-5r", "a (odd) 100%% of it", ("x",)),
        ("durability=interval: it waits", "durability=interval: it waits", ()),
        ("%s", "", ("",)),
        ("", "", ()),
    ],
)
def test_a_template_is_read(template: str, phrase: str, fields: tuple[str, ...]) -> None:
    assert read_template(template) == (phrase, fields)


def test_values_keep_their_types_as_far_as_json_has_them() -> None:
    line = line_of(
        "role changed a=%s b=%s c=%s d=%s e=%s f=%s g=%s",
        *(None, True, 2.5, math.inf, [1, "x", b"y"], DiskFull("no room"), "ü\n\udc80"),
    )
    assert [line[key] for key in "abcdefg"] == [
        *(None, True, 2.5, "inf", [1, "x", "b'y'"]),
        *("no room", "ü\n\udc80"),
    ]
    assert line["event"] == "role_changed"


def test_what_has_no_name_is_a_detail() -> None:
    assert line_of("feature level of the log is %d", 9)["detail"] == 9
    assert line_of("lag is not shown group=%s: %s of %d", "g", "x", 3)["detail"] == ["x", 3]
    line = line_of("setting changed name=%s level=%s", "a", 7)
    assert (line["level"], line["detail"]) == ("INFO", 7), "no field takes the place of a key"


def test_other_libraries_and_forgotten_names_are_told_apart() -> None:
    assert line_of("learner added node=%d", 1, name="kazoo.client")["event"] == LIBRARY
    assert line_of("nobody named this x=%d", 1)["event"] == UNNAMED
    assert not {LIBRARY, UNNAMED} & set(NAMES.values())


def test_a_wrong_call_and_a_hostile_value_raise_nothing() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("not to be shown")

    assert line_of("caught up a=%d", "x")["message"] == "caught up a=%d"
    assert line_of("caught up a=%d b=%d", 1)["a"] == 1
    assert line_of("caught up a=%s", Hostile())["a"] == "<Hostile>"
    assert line_of({"not": "text"})["event"] == UNNAMED
    assert line_of("caught up a=%(x)s", {"x": 1})["message"] == "caught up a=1"


def test_a_traceback_is_one_entry() -> None:
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        line = line_of("task failed", exc_info=sys.exc_info())
    assert line["event"] == "task_failed"
    assert line["exception"].startswith("Traceback")
    assert "ZeroDivisionError" in line["exception"]


def test_a_line_that_is_logged_seldom_has_its_event() -> None:
    lines = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines("x").format(record)))

    logger = logging.Logger("semel.protos.test")
    logger.addHandler(Kept())
    Seldom(logger).warning("calls refused class=%s running=%d", "admin", 5)
    (line,) = lines
    assert (line["event"], line["class"], line["running"]) == ("calls_refused", "admin", 5)
    assert line["count"] == 1


PROGRAM = """
import logging, sys, threading, warnings
from semel.protos.logs import set_up, tell_end
set_up(sys.argv[1], process="test", text="%(levelname)s %(message)s")
logging.getLogger("semel.x").info("caught up applied_index=%d", 3)
logging.getLogger("other").warning("100 %")
warnings.warn("old")
class Late:
    def __del__(self): raise ValueError("late")
Late()
thread = threading.Thread(target=lambda: 1 // 0, name="worker")
thread.start(); thread.join()
tell_end("node 1: no room\\nat all")
raise KeyError("end")
"""


def test_every_line_of_a_program_is_an_object() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "json"], capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == [
        "caught_up",
        LIBRARY,
        LIBRARY,
        "exception_ignored",
        "thread_failed",
        "process_ends",
        "program_failed",
    ]
    assert {line["process"] for line in lines} == {"test"}
    assert (lines[4]["name"], lines[5]["reason"]) == ("worker", "node 1: no room\nat all")
    assert "KeyError: 'end'" in lines[6]["exception"]
    assert done.returncode == 1


def test_text_stays_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "text"], capture_output=True, check=False)
    lines = done.stderr.decode().splitlines()
    assert lines[:2] == ["INFO caught up applied_index=3", "WARNING 100 %"]
    assert "error: node 1: no room" in lines


def test_the_reason_of_an_end_is_found_in_both_forms() -> None:
    ended = line_of("the process ends reason=%s", "no room", name="semel.protos.logs")
    assert reason_in(json.dumps(ended)) == "no room"
    assert reason_in("error: no room") == "no room"
    for other in ("WARNING x", json.dumps(line_of("caught up")), "{", "{}", '{"event": 1}'):
        assert reason_in(other) is None
