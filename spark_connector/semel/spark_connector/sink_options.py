"""The options of a write: names, defaults, checks. Pure.

How it works. `parse_write_options` turns Spark's strings into one frozen `WriteOptions`; sizes and
compression are the SDK's options of a producer, and the SDK checks them. Only the caller knows
whether a write is a batch or a stream, so `for_batch` and `for_stream` refuse the options that have
no meaning there.

Invariants
1. A batch write under a transaction id of the user's own also has an epoch of the user's own: with
   a generated epoch, a second write would be taken for a replay of the first and be dropped.

Not here: parsing of a single option's text (`option_values.py`), options of a read (`options.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from semel.client.api.transaction_work import check_names, check_ttl
from semel.client.config import CODECS, ProducerConfig, build
from semel.client.transactions.staging import TTL_MS_DEFAULT
from semel.protos.errors import InvalidRequest
from semel.spark_connector import option_values as values
from semel.spark_connector.client_options import (
    CLIENT_OPTIONS,
    ClientOptions,
    parse_client_options,
)
from semel.spark_connector.options import DEFAULT_TIMEOUT_MS

KNOWN_WRITE_OPTIONS: Final = (
    *CLIENT_OPTIONS,
    "topic",
    "transactionId",
    "transactionEpoch",
    "transactionTtl",
    "compression",
    "batchBytes",
    "bufferBytes",
    "deliveryTimeoutMs",
    "timeoutMs",
)
_OF_SPARK: Final = frozenset({"checkpointlocation"})
"""Spark passes this option of a streaming query of its own together with ours."""
_FAMILIAR: Final = {
    "kafka.bootstrap.servers": "bootstrap",
    "bootstrap.servers": "bootstrap",
    "kafka.transactional.id": "transactionId",
    "kafka.compression.type": "compression",
    "kafka.batch.size": "batchBytes",
    "kafka.buffer.memory": "bufferBytes",
    "kafka.delivery.timeout.ms": "deliveryTimeoutMs",
    "subscribe": "topic",
    "topics": "topic",
    "path": "topic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of one write."""

    client: ClientOptions
    topic: str = ""
    """Topic of every row; when empty, the column topic names it."""
    transaction_id: str = ""
    """The option's value; if empty, the streaming query's id, or a fresh one for a batch."""
    transaction_epoch: int | None = None
    """Only for a batch; given if and only if the transaction id is."""
    ttl_ms: int = TTL_MS_DEFAULT
    """How long staged rows wait for the commit."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ProducerConfig that were given."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """Time-out for connecting, and for a commit whose outcome is in doubt."""

    def for_batch(self) -> WriteOptions:
        """The options checked for a batch write. Raises InvalidRequest."""
        if self.transaction_id and self.transaction_epoch is None:
            raise InvalidRequest(
                "option 'transactionId' needs 'transactionEpoch' in a batch write: a number that"
                " rises from write to write, and is the same when one is repeated"
            )
        if self.transaction_epoch is not None and not self.transaction_id:
            raise InvalidRequest("option 'transactionEpoch' has no meaning without transactionId")
        return self

    def for_stream(self) -> WriteOptions:
        """The options checked for a streaming query. Raises InvalidRequest."""
        if self.transaction_epoch is not None:
            raise InvalidRequest(
                "option 'transactionEpoch' is for batch writes: a streaming query counts by itself"
            )
        return self


def parse_write_options(options: Mapping[str, str], environment: Mapping[str, str]) -> WriteOptions:
    """Parses the options of one write. Raises InvalidRequest in one line."""
    given = _by_known_name(options)
    client = parse_client_options(given, environment)
    for name in ("topic", "transactionId"):
        if name in given and not given[name].strip():
            raise InvalidRequest(f"option {name!r} is empty")
    found = WriteOptions(
        client=client,
        topic=given.get("topic", "").strip(),
        transaction_id=given.get("transactionId", "").strip(),
        transaction_epoch=(
            values.whole_number("transactionEpoch", given["transactionEpoch"], 0, (1 << 62) - 1)
            if "transactionEpoch" in given
            else None
        ),
        ttl_ms=(
            values.duration_ms("transactionTtl", given["transactionTtl"])
            if "transactionTtl" in given
            else TTL_MS_DEFAULT
        ),
        producer=_producer(given),
        timeout_ms=values.whole_number(
            "timeoutMs", given.get("timeoutMs", str(DEFAULT_TIMEOUT_MS)), 1, 3_600_000
        ),
    )
    check_ttl(found.ttl_ms)
    if found.transaction_id:
        check_names(found.transaction_id, "", None)
    return found


def _producer(given: Mapping[str, str]) -> dict[str, Any]:
    """The SDK's own options of a producer."""
    found: dict[str, Any] = {}
    if "compression" in given:
        found["compression"] = values.one_of("compression", given["compression"], tuple(CODECS))
    for name, field_name in (("batchBytes", "batch_bytes"), ("bufferBytes", "buffer_bytes")):
        if name in given:
            found[field_name] = values.size_bytes(name, given[name])
    if "deliveryTimeoutMs" in given:
        found["delivery_timeout_ms"] = values.whole_number(
            "deliveryTimeoutMs", given["deliveryTimeoutMs"], 1, 86_400_000
        )
    build(ProducerConfig, found)
    return found


def _by_known_name(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their proper names; Spark gives names in lower case."""
    known = {name.lower(): name for name in KNOWN_WRITE_OPTIONS}
    found = {}
    for name, value in options.items():
        if name.lower() in _OF_SPARK:
            continue
        proper = known.get(name.lower())
        if proper is None:
            raise InvalidRequest(
                f"unknown option {name!r} of writing to format semel; {_nearest(name)}"
            )
        found[proper] = value
    return found


def _nearest(name: str) -> str:
    word = name.lower()
    if word in _FAMILIAR:
        return f"did you mean {_FAMILIAR[word]!r}?"
    lower = {option.lower(): option for option in KNOWN_WRITE_OPTIONS}
    near = difflib.get_close_matches(word, list(lower), n=1, cutoff=0.5)
    if near:
        return f"did you mean {lower[near[0]]!r}?"
    return f"known are {', '.join(KNOWN_WRITE_OPTIONS)}"
