"""Options of the data source: defaults, every refusal, names in any case."""

import pytest

from semel.protos.errors import InvalidRequest
from semel.spark_connector.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    EARLIEST,
    KNOWN_OPTIONS,
    LATEST,
    ReadOptions,
    parse_options,
)


def parse(**options: str) -> ReadOptions:
    return parse_options({"subscribe": "orders", **options}, {})


def test_defaults_read_everything_there_is():
    assert parse() == ReadOptions(
        bootstrap=DEFAULT_BOOTSTRAP,
        topics=("orders",),
        starting=EARLIEST,
        ending=LATEST,
        records_per_partition_max=None,
        include_headers=True,
        timeout_ms=DEFAULT_TIMEOUT_MS,
    )


def test_all_options_in_the_lower_case_that_spark_gives():
    given = {
        "bootstrap": "a:1,b:2",
        "subscribe": " x , y,x ",
        "startingoffsets": '{"x": {"0": 3, "1": -2}, "y": {"0": -1}}',
        "endingoffsets": '{"x": {"0": 9, "1": -1}, "y": {"0": 7}}',
        "maxrecordsperpartition": "100",
        "includeheaders": "False",
        "timeoutms": "5",
    }
    assert {name.lower() for name in KNOWN_OPTIONS} == set(given)
    assert parse_options(given, {"SEMEL_BOOTSTRAP": "c:3"}) == ReadOptions(
        bootstrap="a:1,b:2",
        topics=("x", "y"),
        starting={"x": {0: 3, 1: EARLIEST}, "y": {0: LATEST}},
        ending={"x": {0: 9, 1: LATEST}, "y": {0: 7}},
        records_per_partition_max=100,
        include_headers=False,
        timeout_ms=5,
    )


def test_bootstrap_comes_from_the_environment_when_no_option_says_it():
    found = parse_options({"subscribe": "orders"}, {"SEMEL_BOOTSTRAP": "c:3"})
    assert found.bootstrap == "c:3"


@pytest.mark.parametrize("word", ["latest", "LATEST", " Latest "])
def test_words_for_offsets_in_any_case(word):
    assert parse(startingOffsets=word).starting == LATEST


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOfsets", "did you mean 'startingOffsets'?"),
        ("kafka.bootstrap.servers", "did you mean 'bootstrap'?"),
        ("topic", "did you mean 'subscribe'?"),
        ("path", "give the topic as option 'subscribe'"),
        ("zzz", "known are bootstrap, subscribe"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(name, hint):
    with pytest.raises(InvalidRequest, match="unknown option") as caught:
        parse_options({"subscribe": "orders", name: "1"}, {})
    assert repr(name) in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": " , "}, "'subscribe' is missing"),
        ({"maxRecordsPerPartition": "0"}, "from 1 to"),
        ({"maxRecordsPerPartition": "many"}, "not 'many'"),
        ({"timeoutMs": "-1"}, "'timeoutMs' must be a whole number"),
        ({"includeHeaders": "yes"}, "must be true or false, not 'yes'"),
        ({"startingOffsets": "first"}, "earliest, latest or JSON"),
        ({"startingOffsets": "[1]"}, "must be a JSON object"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "'other', which is not subscribed"),
        ({"startingOffsets": "{}"}, "says nothing of topic 'orders'"),
        ({"startingOffsets": '{"orders": 5}'}, "an object of queues"),
        ({"startingOffsets": '{"orders": {}}'}, "an object of queues"),
        ({"startingOffsets": '{"orders": {"a": 1}}'}, "'a' is not a queue"),
        ({"startingOffsets": '{"orders": {"-1": 1}}'}, "'-1' is not a queue"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 is not an offset"),
        ({"startingOffsets": '{"orders": {"0": 1.5}}'}, "1.5 is not an offset"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "True is not an offset"),
        ({"startingOffsets": '{"orders": {"0": 1, "00": 2}}'}, "queue 00 of topic 'orders' twice"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "-2 is not an offset"),
    ],
)
def test_bad_values_are_refused_in_one_line(options, message):
    with pytest.raises(InvalidRequest) as caught:
        parse(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_topic_at_all():
    with pytest.raises(InvalidRequest, match="'subscribe' is missing"):
        parse_options({}, {})
