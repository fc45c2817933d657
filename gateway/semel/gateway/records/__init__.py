"""Kafka's record batches, to and from batches of this project. No I/O, no clock."""

from semel.gateway.records.decoding import DecodedBatch, decode, decode_produced
from semel.gateway.records.encoding import encode, encode_gap
from semel.gateway.records.record_batch import RecordCodec
from semel.gateway.records.record_errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidRecordTime,
    RecordsTooLarge,
    RefusedRecords,
    UnsupportedCompression,
    UnsupportedMagic,
)
from semel.gateway.records.wide_sequences import narrow, widen

__all__ = [
    "CorruptRecords",
    "DecodedBatch",
    "InvalidRecordTime",
    "InvalidRecords",
    "RecordCodec",
    "RecordsTooLarge",
    "RefusedRecords",
    "UnsupportedCompression",
    "UnsupportedMagic",
    "decode",
    "decode_produced",
    "encode",
    "encode_gap",
    "narrow",
    "widen",
]
