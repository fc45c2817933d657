"""What the text of a single option means, and every refusal in one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from semel.spark_connector import option_values as values
from semel.spark_connector.option_values import EARLIEST, LATEST


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("500ms", 500), ("30s", 30_000), (" 15M ", 900_000), ("2 h", 7.2e6)],
)
def test_durations(text: str, ms: int | float) -> None:
    assert values.duration_ms("x", text) == ms


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("64k", 65_536), ("10MB", 10 << 20), ("1g", 1 << 30), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert values.size_bytes("x", text) == size


@pytest.mark.parametrize("word", ["latest", "LATEST", " Latest "])
def test_words_for_offsets_in_any_case(word: str) -> None:
    assert values.offsets("x", word, is_start=True) == LATEST
    assert values.offsets("x", word, is_start=False) == LATEST
    assert values.offsets("x", "earliest", is_start=True) == EARLIEST


def test_names_once_each() -> None:
    assert values.names("x", " a ,b,, a") == ("a", "b")


queues = st.dictionaries(st.integers(0, 99), st.integers(EARLIEST, 1 << 60), min_size=1)


@given(st.dictionaries(st.text(min_size=1), queues, min_size=1))
def test_json_of_offsets_means_what_it_says(asked: dict[str, dict[int, int]]) -> None:
    import json

    assert values.offsets("x", json.dumps(asked), is_start=True) == asked


REFUSED = [
    (values.duration_ms, "soon", "a time like 500ms"),
    (values.duration_ms, "-1s", "a time like 500ms"),
    (values.duration_ms, "5 weeks", "not '5 weeks'"),
    (values.size_bytes, "0", "a size like 512k"),
    (values.size_bytes, "big", "not 'big'"),
    (values.boolean, "yes", "must be true or false, not 'yes'"),
    (values.pattern, "(", "no regular expression"),
    (values.pattern, " ", "is empty"),
    (values.names, " , ", "is empty"),
    (values.assignment, "{}", "names no topic"),
    (values.assignment, "[1]", "must be JSON like"),
    (values.assignment, '{"t": []}', "a list of queues"),
    (values.assignment, '{"t": [-1]}', "-1 is not a queue"),
    (values.assignment, '{"t": [true]}', "True is not a queue"),
    (values.times, '{"t": {"0": -1}}', "-1 is not a time in milliseconds"),
    (values.times, "yesterday", "in milliseconds, not 'yesterday'"),
    (values.times, '{"t": 5}', "an object of queues"),
]


@pytest.mark.parametrize(("parse", "text", "message"), REFUSED)
def test_refusals(parse: Callable[[str, str], object], text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse("theOption", text)
    assert message in str(caught.value)
    assert "'theOption'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first", "earliest, latest or JSON"),
        ("[1]", "earliest, latest or JSON"),
        ('{"t": 5}', "an object of queues"),
        ('{"t": {}}', "an object of queues"),
        ('{"t": {"a": 1}}', "'a' is not a queue"),
        ('{"t": {"-1": 1}}', "'-1' is not a queue"),
        ('{"t": {"0": -3}}', "-3 is not an offset"),
        ('{"t": {"0": 1.5}}', "1.5 is not an offset"),
        ('{"t": {"0": true}}', "True is not an offset"),
        ('{"t": {"0": 1, "00": 2}}', "queue 00 of topic 't' twice"),
        ('{"t": {"0": 1, "0": 2}}', "'0' twice"),
    ],
)
def test_refused_offsets(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        values.offsets("startingOffsets", text, is_start=True)
    assert message in str(caught.value)


def test_an_end_is_never_earliest() -> None:
    with pytest.raises(InvalidRequest, match="cannot be earliest"):
        values.offsets("endingOffsets", "earliest", is_start=False)
    with pytest.raises(InvalidRequest, match="-2 is not an offset"):
        values.offsets("endingOffsets", '{"t": {"0": -2}}', is_start=False)
