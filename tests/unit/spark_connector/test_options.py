"""Options of a read: defaults, names in any case, every refusal of what does not fit together."""

from __future__ import annotations

import pytest

from semel.protos.errors import InvalidRequest
from semel.spark_connector.client_options import ClientOptions
from semel.spark_connector.option_values import EARLIEST, LATEST
from semel.spark_connector.options import (
    BATCH_ONLY,
    DEFAULT_TIMEOUT_MS,
    DEFAULT_TRIGGER_DELAY_MS,
    KNOWN_OPTIONS,
    STREAM_ONLY,
    AtOffsets,
    AtTimes,
    ReadOptions,
    Topics,
    parse_options,
)


def parse(**options: str) -> ReadOptions:
    ways = {"subscribe", "subscribePattern", "assign"}
    given = options if ways & set(options) else {"subscribe": "orders", **options}
    return parse_options(given, {})


def test_defaults() -> None:
    assert parse() == ReadOptions(
        client=ClientOptions(),
        topics=Topics(names=("orders",)),
        starting=None,
        ending=AtOffsets(LATEST),
        late_start="error",
        fail_on_data_loss=True,
        partitions_min=None,
        records_per_partition_max=None,
        include_headers=False,
        push_down_filters=False,
        read_from="master",
        trigger_rows_max=None,
        trigger_rows_min=None,
        trigger_delay_ms_max=DEFAULT_TRIGGER_DELAY_MS,
        trigger_bytes_max=None,
        lag_group="",
        timeout_ms=DEFAULT_TIMEOUT_MS,
        given=frozenset({"subscribe"}),
    )
    assert parse().for_batch().starting == AtOffsets(EARLIEST)
    assert parse().for_stream().starting == AtOffsets(LATEST)
    assert parse(startingOffsets="latest").for_batch().starting == AtOffsets(LATEST)


EVERYTHING = {
    "bootstrap": "a:1,b:2",
    "profile": "orders",
    "tokenFile": "/token",
    "subscribe": " x , y,x ",
    "startingOffsets": '{"x": {"0": 3, "1": -2}, "y": {"0": -1}}',
    "endingOffsets": '{"x": {"0": 9, "1": -1}, "y": {"0": 7}}',
    "failOnDataLoss": "FALSE",
    "minPartitions": "7",
    "maxRecordsPerPartition": "100",
    "includeHeaders": "True",
    "pushDownFilters": "true",
    "readFrom": "any",
    "maxOffsetsPerTrigger": "50",
    "minOffsetsPerTrigger": "20",
    "maxTriggerDelay": "30s",
    "maxBytesPerTrigger": "64m",
    "groupIdForLag": " lag ",
    "timeoutMs": "5",
}
OTHER_WAYS = {
    "clientConfig",
    "token",
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "manifest",
}


def test_all_options_in_the_lower_case_that_spark_gives() -> None:
    assert set(EVERYTHING) | OTHER_WAYS == set(KNOWN_OPTIONS)
    given = {name.lower(): value for name, value in EVERYTHING.items()}
    assert parse_options(given, {"SEMEL_BOOTSTRAP": "c:3"}) == ReadOptions(
        client=ClientOptions(
            bootstrap="a:1,b:2",
            given=(("SEMEL_PROFILE", "orders"), ("SEMEL_TOKEN_FILE", "/token")),
            environment=(("SEMEL_BOOTSTRAP", "c:3"),),
        ),
        topics=Topics(names=("x", "y")),
        starting=AtOffsets({"x": {0: 3, 1: EARLIEST}, "y": {0: LATEST}}),
        ending=AtOffsets({"x": {0: 9, 1: LATEST}, "y": {0: 7}}),
        fail_on_data_loss=False,
        partitions_min=7,
        records_per_partition_max=100,
        include_headers=True,
        push_down_filters=True,
        read_from="any",
        trigger_rows_max=50,
        trigger_rows_min=20,
        trigger_delay_ms_max=30_000,
        trigger_bytes_max=64 << 20,
        lag_group="lag",
        timeout_ms=5,
        given=frozenset(EVERYTHING),
    )


def test_times_go_before_offsets_and_one_time_before_many() -> None:
    times = '{"orders": {"0": 7, "1": 8}}'
    found = parse(startingOffsetsByTimestamp=times, startingOffsets="earliest")
    assert found.starting == AtTimes({"orders": {0: 7, 1: 8}})
    found = parse(startingTimestamp="5", startingOffsetsByTimestamp=times, endingTimestamp="9")
    assert (found.starting, found.ending) == (AtTimes(5), AtTimes(9))
    assert parse(endingOffsetsByTimestamp=times).ending == AtTimes({"orders": {0: 7, 1: 8}})
    late = parse(startingTimestamp="5", startingOffsetsByTimestampStrategy="LATEST")
    assert late.late_start == "latest"


def test_ways_to_choose_topics() -> None:
    assert parse(assign='{"a": [0, 2], "b": [1]}').topics == Topics(
        names=("a", "b"), queues={"a": frozenset({0, 2}), "b": frozenset({1})}
    )
    pattern = parse(subscribePattern="or.*").topics
    assert pattern == Topics(pattern="or.*")
    assert pattern.chosen(["orders", "history", "or"]) == ["orders", "or"]
    assert parse(subscribePattern="or").topics.chosen(["orders"]) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOfsets", "did you mean 'startingOffsets'?"),
        ("maxOffsetPerTriger", "did you mean 'maxOffsetsPerTrigger'?"),
        ("kafka.bootstrap.servers", "did you mean 'bootstrap'?"),
        ("kafka.group.id", "did you mean 'groupIdForLag'?"),
        ("kafka.fetch.min.bytes", "coming from Kafka"),
        ("topic", "did you mean 'subscribe'?"),
        ("path", "give the topic as option 'subscribe'"),
        ("zzz", "known are bootstrap, clientConfig"),
    ],
)
def test_an_unknown_option_names_the_nearest_known_one(name: str, hint: str) -> None:
    with pytest.raises(InvalidRequest, match="unknown option") as caught:
        parse(**{name: "1"})
    assert repr(name) in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap": "nowhere"}, "'nowhere' is not HOST:PORT"),
        ({"maxRecordsPerPartition": "0"}, "from 1 to"),
        ({"minPartitions": "many"}, "not 'many'"),
        ({"timeoutMs": "-1"}, "'timeoutMs' must be a whole number"),
        ({"readFrom": "slave"}, "must be master or any, not 'slave'"),
        ({"startingTimestamp": "-5"}, "'startingTimestamp' must be a whole number"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "'other', which is not subscribed"),
        ({"startingOffsets": "{}"}, "says nothing of topic 'orders'"),
        (
            {"assign": '{"t": [0, 1]}', "startingOffsets": '{"t": {"0": 1}}'},
            "must name the assigned queues of topic 't': 0, 1",
        ),
        ({"subscribe": "a", "assign": '{"t": [0]}'}, "'subscribe' and 'assign' exclude each other"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "is 5, more than"),
        ({"maxTriggerDelay": "5s"}, "no meaning without minOffsetsPerTrigger"),
        ({"groupIdForLag": " "}, "give the name of a group"),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "no meaning without startingTimestamp",
        ),
        (
            {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "first"},
            "must be error or latest, not 'first'",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_topic_at_all() -> None:
    with pytest.raises(InvalidRequest, match="'subscribe' is missing"):
        parse_options({}, {})


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_a_batch_has_no_triggers(name: str) -> None:
    more = {"minOffsetsPerTrigger": "1"} if name == "maxTriggerDelay" else {}
    with pytest.raises(InvalidRequest, match="is for streaming reads"):
        parse(**{name: EVERYTHING[name], **more}).for_batch()


@pytest.mark.parametrize("name", BATCH_ONLY)
def test_a_stream_has_no_end(name: str) -> None:
    values = {
        "endingOffsets": "latest",
        "pushDownFilters": "true",
        "endingTimestamp": "1",
        "endingOffsetsByTimestamp": '{"orders": {"0": 1}}',
        "manifest": "s3://bucket/prefix",
    }
    with pytest.raises(InvalidRequest, match="is for batch reads"):
        parse(**{name: values[name]}).for_stream()
