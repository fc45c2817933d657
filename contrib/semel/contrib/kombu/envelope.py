"""Kombu's messages as Semel's, and back. Pure.

How it works. The body is the message's value as it is, so that readers without Kombu can use it.
All else that Kombu says of a message is JSON in one header, `kombu`. A message without that header
comes from another producer: its value is the body, its headers are the headers, and the header
`content-type` says what it is.

- The time for which a message is held back is Celery's header `eta` (also what `countdown` and
  `retry` become), or `x-delay`, milliseconds.
- The key is the property `semel_key`. It says which messages keep their order.
- The id begins with the task's id, or the property `message_id`. A digest of all that was sent
  follows, because a task that is retried or replaced has the same id and is another message.
- The property `semel` of a received message says where it was stored first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kombu.utils.json import dumps, loads

from semel.client.core.fields import as_bytes
from semel.client.core.letters import own
from semel.client.message import Message

ENVELOPE: Final = "kombu"
CONTENT_TYPE: Final = "content-type"
KEY: Final = "semel_key"
ORIGIN: Final = "semel"
_ID_CHARACTERS_MAX: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS_MAX: Final = 1 << 53


class Outgoing(NamedTuple):
    """A message to send."""

    value: bytes
    headers: list[tuple[str, bytes]]
    key: bytes | None
    message_id: str | None
    deliver_at_us: int | None


def outgoing(message: Mapping[str, Any], now_us: int) -> Outgoing:
    """Returns what to send of a message of Kombu. Raises InvalidRequest for a body that is neither
    text nor bytes."""
    properties = dict(message.get("properties") or {})
    properties.pop("delivery_tag", None)
    properties.pop(ORIGIN, None)
    key = properties.pop(KEY, None)
    headers = dict(message.get("headers") or {})
    body = message.get("body")
    value = b"" if body is None else as_bytes("the body", body)
    content_type = message.get("content-type")
    envelope = dumps(
        {
            "content-type": content_type,
            "content-encoding": message.get("content-encoding"),
            "headers": headers,
            "properties": properties,
        }
    ).encode()
    named = properties.get("message_id") or headers.get("id")
    return Outgoing(
        value=value,
        headers=[(ENVELOPE, envelope), (CONTENT_TYPE, str(content_type or "").encode())],
        key=None if key is None else as_bytes(KEY, key),
        message_id=None if not named else _message_id(str(named), envelope, value),
        deliver_at_us=due_us(headers, now_us),
    )


def _message_id(name: str, envelope: bytes, value: bytes) -> str:
    digest = hashlib.sha256(len(envelope).to_bytes(8, "little") + envelope + value).hexdigest()[:32]
    plain = name.encode(errors="replace")[:_ID_CHARACTERS_MAX].decode(errors="ignore")
    return f"{plain}:{digest}"


def incoming(message: Message, tag: str, *, redelivered: bool) -> dict[str, Any]:
    """Returns a message as Kombu's virtual channels read it. Never raises: a header that cannot be
    read makes it a message of another producer."""
    sealed = dict(message.headers).get(ENVELOPE)
    payload = _opened(sealed) if sealed is not None else None
    if payload is None:
        payload = _foreign(message)
    payload["body"] = message.value or b""
    properties = payload["properties"]
    info = properties.get("delivery_info")
    properties["delivery_info"] = info = dict(info) if isinstance(info, dict) else {}
    info.setdefault("exchange", "")
    info.setdefault("routing_key", message.topic)
    info["redelivered"] = redelivered or message.attempt > 1
    properties["delivery_tag"] = tag
    origin = message.origin
    properties[ORIGIN] = {
        "topic": origin.topic,
        "queue": origin.queue,
        "offset": origin.offset,
        "attempt": message.attempt,
    }
    return payload


def _opened(sealed: bytes) -> dict[str, Any] | None:
    try:
        found = loads(sealed.decode())
    except Exception:  # whatever the hooks of Kombu's JSON raise for what others wrote
        return None
    if not isinstance(found, dict):
        return None
    headers, properties = found.get("headers"), found.get("properties")
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        return None
    return {
        "content-type": found.get("content-type"),
        "content-encoding": found.get("content-encoding"),
        "headers": headers,
        "properties": properties,
    }


def _foreign(message: Message) -> dict[str, Any]:
    headers = {name: value.decode(errors="replace") for name, value in own(message.headers)}
    kind = headers.pop(CONTENT_TYPE, "") or "application/data"
    headers.pop(ENVELOPE, None)
    text = kind.startswith("text/") or kind == "application/json"
    return {
        "content-type": kind,
        "content-encoding": "utf-8" if text else "binary",
        "headers": headers,
        "properties": {},
    }


def due_us(headers: Mapping[str, Any], sent_us: int) -> int | None:
    """Returns when a message is to be delivered, microseconds since 1970; None for at once. An
    `eta` without a time zone is the worker's to read."""
    times = []
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            at = datetime.fromisoformat(eta)
        except ValueError:
            at = None
    else:
        at = eta if isinstance(eta, datetime) else None
    if at is not None and at.tzinfo is not None:
        since = at - _EPOCH
        times.append((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    delay_ms = _milliseconds(headers.get("x-delay"))
    if delay_ms is not None:
        times.append(sent_us + delay_ms * 1000)
    return max(times, default=None)


def is_expired(payload: Mapping[str, Any], sent_us: int, ttl_ms: int | None, now_us: int) -> bool:
    """Whether a message is older than it may get, counted from when it was to be delivered: by its
    own `expiration`, or by its queue's limit, in milliseconds."""
    own_ms = _milliseconds(payload["properties"].get("expiration"))
    limits = [limit for limit in (own_ms, ttl_ms) if limit is not None]
    if not limits:
        return False
    begin_us = max(sent_us, due_us(payload["headers"], sent_us) or 0)
    return now_us >= begin_us + min(limits) * 1000


def _milliseconds(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= _MS_MAX else None
