"""The refusals of record batches, each with the code that Kafka has for it.

Kafka's clients act by the code: they split a batch that is too large, send a damaged one again, and
give the program everything else.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from semel.protos.errors import InvalidRequest


class RefusedRecords(InvalidRequest):
    """A record set that is not stored. The root of the errors that `decode` raises."""

    kafka_code = ErrorCode.invalid_record


class CorruptRecords(RefusedRecords):
    """The bytes contradict each other: lengths, a count, offsets, a CRC, a compressed body."""

    kafka_code = ErrorCode.corrupt_message


class InvalidRecords(RefusedRecords):
    """The bytes are whole, and say what a producer may not say or what a queue cannot store."""


class UnsupportedMagic(RefusedRecords):
    """A message set in a format older than record batches (magic 0 or 1)."""

    kafka_code = ErrorCode.unsupported_for_message_format


class UnsupportedCompression(RefusedRecords):
    """A codec that this gateway does not know."""

    kafka_code = ErrorCode.unsupported_compression_type


class InvalidRecordTime(RefusedRecords):
    """A timestamp that cannot be stored, or one that only a broker may give."""

    kafka_code = ErrorCode.invalid_timestamp


class RecordsTooLarge(RefusedRecords):
    """A batch that is larger, after decompression, than the caller allows."""

    kafka_code = ErrorCode.message_too_large
