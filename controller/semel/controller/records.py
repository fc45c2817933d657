"""The keys of the metadata store and the messages stored under them.

How it works. Names that users choose are percent-quoted in their key, so that no name can form
another key. `load` and `dump` are the only places where values become messages and
back; docs/formats/metadata.md says what each key holds.

Not here: the store (`store/`), what the records mean (`topics/topics.py`, `producers.py`, …).
"""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote, unquote

from google.protobuf.message import DecodeError, Message

from semel.controller.store import Versioned
from semel.protos.errors import DataDirectoryError

CLUSTER: Final = "/cluster"
LEVEL: Final = "/level"
IMPORT: Final = "/import"
TOPICS: Final = "/topics/"
DELETING: Final = "/deleting/"
BROKERS: Final = "/brokers/"
FOUNDINGS: Final = "/foundings/"
PRODUCERS: Final = "/producers/"
PRODUCER_IDS: Final = "/producer-ids"
CONSUMERS: Final = "/consumers/"
MOVES: Final = "/moves/"
RESTORE: Final = "/restore"
RESTORING: Final = "/restoring/"
MIRRORS: Final = "/mirrors"
MIRRORED: Final = "/mirrored/"
RIGHTS: Final = "/rights"
USERS: Final = "/users/"
SCRAM: Final = "/scram"

M = TypeVar("M", bound=Message)


def topic_key(name: str) -> str:
    """Key of a topic that is active or being created."""
    return TOPICS + quote(name, safe="")


def deleting_key(topic_id: int) -> str:
    """Key of a topic that is being deleted; its name is free again."""
    return f"{DELETING}{topic_id}"


def broker_group_key(group_id: int) -> str:
    """Key of a broker group."""
    return f"{BROKERS}{group_id}"


def founding_key(group_id: int) -> str:
    """Key of the founding of a broker group."""
    return f"{FOUNDINGS}{group_id}"


def producer_key(name: str) -> str:
    """Key of a named producer."""
    return PRODUCERS + quote(name, safe="")


def consumer_group_key(group: str) -> str:
    """Key of a consumer group."""
    return CONSUMERS + quote(group, safe="")


def move_key(topic_id: int, queue_id: int) -> str:
    """Key of the newest move of a queue."""
    return f"{MOVES}{topic_id}/{queue_id}"


def restoring_key(topic_id: int) -> str:
    """Key of a topic that comes from a tier."""
    return f"{RESTORING}{topic_id}"


def mirrored_key(topic_id: int) -> str:
    """Key of a topic that is, or was, a copy of another cluster's."""
    return f"{MIRRORED}{topic_id}"


def user_key(name: str) -> str:
    """Key of a user that has a password."""
    return USERS + quote(name, safe="")


def user_of(key: str) -> str:
    """The user of a `user_key`."""
    return unquote(key.removeprefix(USERS))


def load(kind: type[M], key: str, entry: Versioned) -> M:
    """The message stored under `key`. Raises DataDirectoryError when the value is none."""
    try:
        return kind.FromString(entry.value)
    except DecodeError as error:
        raise DataDirectoryError(
            f"the metadata store holds no {kind.__name__} under {key}: {error}"
        ) from error


def dump(message: Message) -> bytes:
    """The message as it is stored: the same bytes for the same content."""
    return message.SerializeToString(deterministic=True)
