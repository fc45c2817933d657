"""Every log call has a stable event name, and the page of all events is up to date."""

from __future__ import annotations

import re

import pytest

from semel.protos.event_names import NAMES
from semel.protos.logs import RESERVED
from tools import events


def test_every_log_call_has_a_name() -> None:
    calls = list(events.log_calls())
    assert len(calls) > 250
    assert events.problems(calls) == []


def test_the_page_in_the_docs_is_what_the_sources_give() -> None:
    assert events.PAGE.read_text(encoding="utf-8") == events.page(), "python -m tools.events"


def test_names_are_plain_and_belong_to_one_event() -> None:
    assert len(set(NAMES.values())) == len(NAMES)
    for name in NAMES.values():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert name not in RESERVED


LOGGER = "import logging\nlog = logging.getLogger(__name__)\n"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('log.info("nobody named this node=%d", 1)', "give 'nobody named this' a name"),
        ('log.info(f"caught up {1}")', "must be a constant"),
        ('log.log(logging.INFO, "x" + "y")', "must be a constant"),
        ('log.warning("%s", 1)', "must begin with words"),
        ('log.error("caught up level=%d", 1)', "no field may be called 'level'"),
        ('log.error("caught up a=%d a=%d", 1, 2)', "two fields have one name"),
        ('logging.warning("nobody named this")', "give 'nobody named this' a name"),
        ('self._told = Seldom(log)\nself._told.warning("nobody named this")', "a name"),
    ],
)
def test_a_planted_call_is_found(source: str, problem: str) -> None:
    calls = list(events.calls_in(LOGGER + source, "broker", "x.py"))
    found = events.problems(calls)
    assert problem in found[0]
    assert "x.py:" in found[0]


def test_a_name_that_nothing_says_is_found() -> None:
    calls = [call for call in events.log_calls() if call.phrase != "caught up"]
    assert events.problems(calls) == ["no log call says 'caught up' any more"]


def test_calls_of_other_objects_are_no_log_calls() -> None:
    source = LOGGER + 'render.error("x")\nparser.error("y")\nlog.info("caught up")'
    assert [call.template for call in events.calls_in(source, "broker", "x.py")] == ["caught up"]
