"""Message ids that users choose: what the intake and routing check, and how ids determine queues.

How it works. Ids travel with their messages. A topic with dedup by id compares them, and a broker
group finds only ids that it has seen. So the queue of a message without a key is the queue of its
id, which is hashed exactly as keys are: the same id always meets the same group.

Invariants
1. On a topic that compares ids and has queues on several broker groups, a message with an id has no
   key and names no queue: two messages with one id could meet different groups.

Not here: their column in a batch (`semel.protos.columns`), which ids are known (the broker).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from semel.client.core.fields import as_bytes
from semel.protos.arrays import Array, coalesce, offsets_of, valid_of
from semel.protos.errors import InvalidRequest
from semel.protos.id_dedup import COMPARED_ID_BYTES_MAX

MESSAGE_ID_BYTES_MAX: Final = 1_024
"""On a topic that does not compare them; else COMPARED_ID_BYTES_MAX."""

Rows = npt.NDArray[np.int64]


def id_bytes(message_id: Any) -> bytes:
    """Returns one id as bytes; a str becomes UTF-8. Raises InvalidRequest."""
    found = as_bytes("message_id", message_id)
    if not 0 < len(found) <= MESSAGE_ID_BYTES_MAX:
        raise _wrong_length(len(found), "message_id", MESSAGE_ID_BYTES_MAX)
    return found


def check_ids(message_ids: Array, bytes_max: int = MESSAGE_ID_BYTES_MAX) -> Rows:
    """Returns the size of each id of a binary column, 0 for a null. Raises InvalidRequest."""
    sizes: Rows = np.diff(offsets_of(message_ids)).astype(np.int64)
    wrong = sizes > bytes_max
    if message_ids.null_count:
        given = valid_of(message_ids)
        sizes = np.where(given, sizes, 0)
        wrong = given & (wrong | (sizes == 0))
    else:
        wrong |= sizes == 0
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _wrong_length(int(sizes[row]), f"message_id of row {row}", bytes_max)
    return sizes


def routing_keys(keys: Array | None, message_ids: Array) -> Array:
    """Returns what determines the queue of each message of a topic that compares ids: its key, or
    else its id; null without both."""
    return message_ids if keys is None else coalesce(keys, message_ids)


class IdRules(NamedTuple):
    """The rules for message ids of one topic."""

    topic: str = ""
    bytes_max: int = MESSAGE_ID_BYTES_MAX
    groups: int = 1
    """Broker groups of a topic that compares ids; else 1."""

    @property
    def compared(self) -> bool:
        """The topic compares ids."""
        return self.bytes_max == COMPARED_ID_BYTES_MAX

    def check_one(self, message_id: bytes, key: object, queue: object) -> None:
        """Raises InvalidRequest for a message with an id."""
        if not 0 < len(message_id) <= self.bytes_max:
            raise _wrong_length(len(message_id), "message_id", self.bytes_max)
        if self.groups > 1 and (key is not None or queue is not None):
            raise self._scattered("a message with the id " + repr(message_id))

    def check_many(self, message_ids: Array, keys: Array | None, named: Any) -> Rows:
        """Returns the size of each id. `named` has truths for rows that name a queue, or one truth
        for all.

        Raises InvalidRequest.
        """
        sizes = check_ids(message_ids, self.bytes_max)
        if self.groups > 1:
            bound = np.zeros(len(sizes), np.bool_) | named
            if keys is not None:
                bound |= valid_of(keys)
            wrong = bound & (sizes > 0)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise self._scattered(
                    f"row {row} with the id {message_ids.slice(row, 1).to_pylist()[0]!r}"
                )
        return sizes

    def _scattered(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"{what} has a key, or names a queue: topic {self.topic!r} compares message ids and has"
            f" queues on {self.groups} broker groups, which do not know each other's ids, so the"
            " queue must follow from the id alone: leave the key and the queue out, or the id"
        )


NOT_COMPARED: Final = IdRules()


def _wrong_length(size: int, name: str, bytes_max: int) -> InvalidRequest:
    todo = "give None for none" if not size else "shorten it, or give a digest of it"
    where = " on a topic that compares them" if bytes_max == COMPARED_ID_BYTES_MAX else ""
    return InvalidRequest(f"{name} has {size:,} bytes; an id has 1 to {bytes_max:,}{where}: {todo}")
