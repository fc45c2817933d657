"""The settings of a topic as they are given and as they travel: dedup, compaction, and the rest.

Not here: the calls (`admin/calls.py`), settings that a call returns (`admin/descriptions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from semel.protos.errors import InvalidRequest
from semel.protos.id_dedup import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from semel.protos.v1 import common_pb2

_KEEP_MS_MAX: Final = (1 << 63) - 1

OnConflict: TypeAlias = Literal["refuse", "keep-first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdDedup:
    """Dedup by message id: a message whose id is in the topic's window is not stored again."""

    window_bytes: int
    """The topic remembers as many ids as this many bytes allow, 40 bytes an id; at least 1 MiB. An
    id that is older than the window is a new message."""
    keep_ms: int = -1
    """Ids that are older, in milliseconds, are forgotten; -1: only the bytes limit the window."""
    on_conflict: OnConflict = "refuse"
    """What becomes of a message with a known id and other content: "refuse" fails it with
    IdConflict, "keep-first" drops it as a duplicate."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        _check_whole("window_bytes", self.window_bytes, WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
        if self.keep_ms != -1:
            _check_whole("keep_ms", self.keep_ms, 1, _KEEP_MS_MAX)
        if self.on_conflict not in ("refuse", "keep-first"):
            raise InvalidRequest(
                f"on_conflict must be 'refuse' or 'keep-first', not {self.on_conflict!r}"
            )

    @classmethod
    def of(cls, message: common_pb2.TopicSettings) -> IdDedup | None:
        """Returns a topic's setting; None if it compares no ids."""
        if not message.HasField("dedup"):
            return None
        return cls(
            window_bytes=max(WINDOW_BYTES_MIN, message.dedup.window_bytes),
            keep_ms=message.dedup.keep_ms or -1,
            on_conflict="keep-first" if message.dedup.keep_first else "refuse",
        )

    def message(self) -> common_pb2.IdDedup:
        """Returns it as it travels; the controller adds the seed."""
        return common_pb2.IdDedup(
            window_bytes=self.window_bytes,
            keep_ms=max(0, self.keep_ms),
            keep_first=self.on_conflict == "keep-first",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Compaction: only the newest message of each key stays. Messages without a key stay, too."""

    tombstone_ms: int = 86_400_000
    """A message without a value stays for so long, in milliseconds, after the older ones of its key
    are gone: a reader that takes less time from the start to the end meets it. Default a day."""
    lag_ms: int = 0
    """Messages that were stored less than this long ago, in milliseconds, stay."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        _check_whole("tombstone_ms", self.tombstone_ms, 1, _KEEP_MS_MAX)
        _check_whole("lag_ms", self.lag_ms, 0, _KEEP_MS_MAX)

    @classmethod
    def of(cls, message: common_pb2.TopicSettings) -> Compaction | None:
        """Returns a topic's setting; None if it is not compacted."""
        if not message.HasField("compaction"):
            return None
        given = message.compaction
        return cls(tombstone_ms=max(1, given.tombstone_ms), lag_ms=given.lag_ms)

    def message(self) -> common_pb2.Compaction:
        """Returns it as it travels."""
        return common_pb2.Compaction(tombstone_ms=self.tombstone_ms, lag_ms=self.lag_ms)


Storage: TypeAlias = Literal["log", "memory"]
"""Where the bodies of a topic's messages are: on the disks of a majority, or only in its memory."""
_STORAGES: Final[dict[str, common_pb2.Storage]] = {
    "log": common_pb2.STORAGE_LOG,
    "memory": common_pb2.STORAGE_MEMORY,
}


def storage_of(message: common_pb2.TopicSettings) -> Storage:
    """Returns where a topic is."""
    return "memory" if message.storage == common_pb2.STORAGE_MEMORY else "log"


def storage_number(storage: Storage | None) -> int | None:
    """Returns it as it travels. Raises InvalidRequest."""
    if storage is not None and storage not in _STORAGES:
        raise InvalidRequest(f"storage must be 'log' or 'memory', not {storage!r}")
    return None if storage is None else _STORAGES[storage]


CompactionChange: TypeAlias = Compaction | Literal["off"] | None
"""A change of a topic's compaction: other settings of it, its end, or none."""
DedupChange: TypeAlias = IdDedup | Literal["off"] | None
"""A change of a topic's dedup: other settings of it, its end, or none."""


def settings_message(settings: Mapping[str, int | None]) -> common_pb2.TopicSettings:
    """Returns numbers that are given, by the name of their field. Raises InvalidRequest."""
    for name, value in settings.items():
        if value is not None and (not isinstance(value, int) or value == 0 or value < -1):
            raise InvalidRequest(f"{name} must be a whole number from 1, or -1 for none")
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    try:
        return common_pb2.TopicSettings(**given)
    except ValueError as error:
        raise InvalidRequest(f"topic settings: {error}") from None


def change_dedup(message: common_pb2.TopicSettings, dedup: DedupChange) -> None:
    """Changes the dedup of settings. Raises InvalidRequest."""
    if dedup == "off":
        message.ClearField("dedup")
    elif isinstance(dedup, IdDedup):
        message.dedup.CopyFrom(dedup.message())
    elif dedup is not None:
        raise InvalidRequest(f"dedup must be an IdDedup, or 'off' to end it, not {dedup!r}")


def change_compaction(message: common_pb2.TopicSettings, compaction: CompactionChange) -> None:
    """Changes the compaction of settings. Raises InvalidRequest."""
    if compaction == "off":
        message.ClearField("compaction")
    elif isinstance(compaction, Compaction):
        message.compaction.CopyFrom(compaction.message())
    elif compaction is not None:
        raise InvalidRequest(
            f"compaction must be a Compaction, or 'off' to end it, not {compaction!r}"
        )


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"{name} must be a whole number from {least:,}, not {value!r}")
