"""Options of a write: defaults, names in any case, every refusal of what does not fit together."""

from __future__ import annotations

import pickle

import pytest

from semel.client.transactions.staging import TTL_MS_DEFAULT
from semel.protos.errors import InvalidRequest
from semel.spark_connector.client_options import ClientOptions
from semel.spark_connector.options import DEFAULT_TIMEOUT_MS
from semel.spark_connector.sink_options import (
    KNOWN_WRITE_OPTIONS,
    WriteOptions,
    parse_write_options,
)


def test_defaults() -> None:
    assert parse_write_options({}, {}) == WriteOptions(
        client=ClientOptions(),
        topic="",
        transaction_id="",
        transaction_epoch=None,
        ttl_ms=TTL_MS_DEFAULT,
        producer={},
        timeout_ms=DEFAULT_TIMEOUT_MS,
    )


def test_every_option_under_a_name_in_any_case() -> None:
    given = {
        "BOOTSTRAP": "near:2",
        "clientconfig": "/client.toml",
        "tokenfile": "/token",
        "topic": " copy ",
        "transactionid": "nightly",
        "TransactionEpoch": "7",
        "transactionTTL": "2h",
        "compression": "ZSTD",
        "batchbytes": "128k",
        "bufferBytes": "8m",
        "deliveryTimeoutMs": "5000",
        "timeoutms": "900",
    }
    others = {"profile", "token"}  # each in place of another one
    known = {name.lower() for name in KNOWN_WRITE_OPTIONS}
    assert {name.lower() for name in given} == known - others
    found = parse_write_options(given, {})
    assert found == WriteOptions(
        client=ClientOptions(
            bootstrap="near:2",
            given=(("SEMEL_CLIENT_CONFIG", "/client.toml"), ("SEMEL_TOKEN_FILE", "/token")),
        ),
        topic="copy",
        transaction_id="nightly",
        transaction_epoch=7,
        ttl_ms=7_200_000,
        producer={
            "compression": "zstd",
            "batch_bytes": 128 << 10,
            "buffer_bytes": 8 << 20,
            "delivery_timeout_ms": 5_000,
        },
        timeout_ms=900,
    )
    assert pickle.loads(pickle.dumps(found)) == found


def test_sparks_own_option_of_a_stream_is_no_matter_of_ours() -> None:
    assert parse_write_options({"checkpointLocation": "/x"}, {}) == parse_write_options({}, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topc": "a"}, "unknown option 'topc' of writing to format semel; did you mean 'topic'?"),
        ({"path": "a"}, "did you mean 'topic'?"),
        ({"subscribe": "a"}, "did you mean 'topic'?"),
        ({"kafka.bootstrap.servers": "a:1"}, "did you mean 'bootstrap'?"),
        ({"batch_bytes": "1"}, "did you mean 'batchBytes'?"),
        ({"zzz": "1"}, "known are bootstrap, clientConfig, profile, token, tokenFile, topic,"),
        ({"topic": " "}, "option 'topic' is empty"),
        ({"transactionId": ""}, "option 'transactionId' is empty"),
        ({"transactionId": "a\nb"}, "printable"),
        ({"transactionEpoch": "-1"}, "whole number from 0"),
        ({"transactionTtl": "soon"}, "must be a time like"),
        ({"transactionTtl": "8d"}, "seven days"),
        ({"compression": "gzip"}, "none or lz4 or zstd, not 'gzip'"),
        ({"batchBytes": "many"}, "must be a size like"),
        ({"batchBytes": "1g"}, "batch_bytes must be a whole number"),
        ({"timeoutMs": "0"}, "whole number from 1"),
        ({"bootstrap": "nowhere"}, "not HOST:PORT"),
    ],
)
def test_refusals(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_write_options(options, {})
    assert message in str(caught.value)


def test_an_epoch_belongs_to_batches_and_to_an_id() -> None:
    both = parse_write_options({"transactionId": "a", "transactionEpoch": "0"}, {})
    assert both.for_batch() is both
    only_id = parse_write_options({"transactionId": "a"}, {})
    assert only_id.for_stream() is only_id
    only_epoch = parse_write_options({"transactionEpoch": "1"}, {})
    for refused, message in [
        (only_id.for_batch, "needs 'transactionEpoch'"),
        (only_epoch.for_batch, "without transactionId"),
        (only_epoch.for_stream, "counts by itself"),
        (both.for_stream, "counts by itself"),
    ]:
        with pytest.raises(InvalidRequest, match=message):
            refused()
