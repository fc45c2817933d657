"""Creating, altering and deleting topics.

How it works. Settings are written as `semel topic` takes them: `7d`, `10G`, `unlimited`. A form
that the cluster refuses comes back as it was filled in, with the reason. A topic is deleted when
its name is typed.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from semel.client.admin.descriptions import TopicSettings
from semel.client.admin.topic_settings import Compaction, IdDedup
from semel.console.units import Count, Duration, Size, duration
from semel.protos.errors import CallerError, InvalidRequest, PermissionDenied
from semel.web.forms import Fields
from semel.web.visits import Visit, page, status_of

UNITS: dict[str, Any] = {
    "retention_ms": Duration(unlimited=True),
    "retention_bytes": Size(unlimited=True),
    "message_bytes_max": Size(),
    "batch_bytes_max": Size(),
    "delay_per_second_max": Count(none=True),
    "tier_after_ms": Duration(none=True),
    "local_retention_ms": Duration(unlimited=True),
}
FIELDS = (
    "name",
    "queues",
    *UNITS,
    "storage",
    "memory_bytes",
    "dedup_bytes",
    "dedup_for",
    "on_conflict",
    "cleanup",
    "tombstones_for",
    "compact_after",
)


async def show_new(visit: Visit) -> Response:
    filled = dict.fromkeys(FIELDS, "") | {"queues": "4"}
    return visit.show("topic_new.html", filled=filled, reason="")


async def create(visit: Visit) -> Response:
    form = visit.form
    try:
        name = form.needed("name")
        settings = _settings(form)
        if (storage := form.text("storage")) not in ("", "log", "memory"):
            raise InvalidRequest("storage is log or memory")
        if form.text("cleanup") == "compact":
            settings = settings | {"retention_ms": -1, "retention_bytes": -1}
        await visit.client.admin.create_topic(
            name,
            form.whole("queues", 4, low=1),
            storage="memory" if storage == "memory" else None,
            memory_bytes=form.unit("memory_bytes", Size()),
            dedup=_dedup(form, None),
            compaction=_compaction(form, None),
            **settings,
        )
    except CallerError as error:
        if isinstance(error, PermissionDenied):
            raise
        return visit.show(
            "topic_new.html",
            code=status_of(error),
            filled={field: form.text(field) for field in FIELDS},
            reason=error.message,
        )
    return visit.go("/topic", f"topic {name} is created", name=name)


async def show_alter(visit: Visit) -> Response:
    name = visit.query.needed("name")
    topic = await visit.client.admin.describe_topic(name)
    filled = _filled(topic.settings, sum(not queue.sealed for queue in topic.queues))
    return visit.show("topic_alter.html", name=name, filled=filled, reason="")


async def alter(visit: Visit) -> Response:
    """Only what differs from the present settings is sent."""
    form, admin = visit.form, visit.client.admin
    name = form.needed("name")
    topic = await admin.describe_topic(name)
    present = sum(not queue.sealed for queue in topic.queues)
    before = _filled(topic.settings, present)
    try:
        changed = {
            field: value
            for field, value in _settings(form).items()
            if form.text(field) != before[field]
        }
        if form.text("memory_bytes") not in ("", before["memory_bytes"]):
            changed["memory_bytes"] = form.unit("memory_bytes", Size())
        if form.text("cleanup") == "compact" != before["cleanup"]:
            changed |= {"retention_ms": -1, "retention_bytes": -1}
        queues = form.whole("queues", present, low=1)
        dedup = _dedup(form, topic.settings.dedup) if _differs(form, before, "dedup") else None
        if _differs(form, before, "dedup") and not form.text("dedup_bytes"):
            dedup = "off"
        compaction: Any = None
        if _differs(form, before, "compaction"):
            compaction = _compaction(form, topic.settings.compaction) or "off"
        if not (changed or queues != present or dedup or compaction):
            return visit.go("/topic", "nothing was changed", name=name)
        await admin.alter_topic(
            name,
            queues=queues if queues != present else None,
            dedup=dedup,
            compaction=compaction,
            **changed,
        )
    except CallerError as error:
        if isinstance(error, PermissionDenied):
            raise
        filled = {field: form.text(field) for field in FIELDS}
        return visit.show(
            "topic_alter.html",
            code=status_of(error),
            name=name,
            filled=filled,
            reason=error.message,
        )
    return visit.go("/topic", f"topic {name} is altered", name=name)


async def delete(visit: Visit) -> Response:
    name = visit.form.needed("name")
    if visit.form.text("typed") != name:
        return visit.go("/topic", f"nothing was deleted: type {name} to delete it", name=name)
    await visit.client.admin.delete_topic(name)
    return visit.go("/topics", f"topic {name} is deleted")


def _settings(form: Fields) -> dict[str, Any]:
    """The settings of UNITS that are filled in. Raises InvalidRequest."""
    found = {field: form.unit(field, kind) for field, kind in UNITS.items()}
    return {field: value for field, value in found.items() if value is not None}


def _dedup(form: Fields, present: IdDedup | None) -> Any:
    """Raises InvalidRequest."""
    window_bytes = form.unit("dedup_bytes", Size())
    keep_ms = form.unit("dedup_for", Duration(unlimited=True))
    if window_bytes is None:
        if keep_ms is not None and present is None:
            raise InvalidRequest("dedup for: say how many bytes of ids the topic remembers, too")
        return None
    on_conflict: Any = form.text("on_conflict") or "refuse"
    return IdDedup(
        window_bytes=window_bytes,
        keep_ms=-1 if keep_ms is None else keep_ms,
        on_conflict=on_conflict,
    )


def _compaction(form: Fields, present: Compaction | None) -> Compaction | None:
    """Raises InvalidRequest."""
    kind = form.text("cleanup") or "delete"
    if kind not in ("delete", "compact", "compact,delete"):
        raise InvalidRequest("cleanup is delete, compact or compact,delete")
    if kind == "delete":
        return None
    base = present or Compaction()
    tombstone_ms = form.unit("tombstones_for", Duration())
    lag_ms = form.unit("compact_after", Duration())
    return Compaction(
        tombstone_ms=base.tombstone_ms if tombstone_ms is None else tombstone_ms,
        lag_ms=base.lag_ms if lag_ms is None else lag_ms,
    )


_PARTS = {
    "dedup": ("dedup_bytes", "dedup_for", "on_conflict"),
    "compaction": ("cleanup", "tombstones_for", "compact_after"),
}


def _differs(form: Fields, before: dict[str, str], part: str) -> bool:
    return any(form.text(field) != before[field] for field in _PARTS[part])


def _filled(settings: TopicSettings, queues: int) -> dict[str, str]:
    """The form of the present settings."""
    dedup, compaction = settings.dedup, settings.compaction
    unlimited = settings.retention_ms < 0 and settings.retention_bytes < 0
    kind = "delete" if compaction is None else "compact" if unlimited else "compact,delete"
    return {
        "name": "",
        "queues": str(queues),
        "retention_ms": duration(settings.retention_ms),
        "retention_bytes": _size(settings.retention_bytes),
        "message_bytes_max": _size(settings.message_bytes_max),
        "batch_bytes_max": _size(settings.batch_bytes_max),
        "delay_per_second_max": _or_none(settings.delay_per_second_max, str),
        "tier_after_ms": _or_none(settings.tier_after_ms, duration),
        "local_retention_ms": duration(settings.local_retention_ms),
        "storage": settings.storage,
        "memory_bytes": _size(settings.memory_bytes) if settings.memory_bytes else "",
        "dedup_bytes": _size(dedup.window_bytes) if dedup else "",
        "dedup_for": duration(dedup.keep_ms) if dedup else "",
        "on_conflict": dedup.on_conflict if dedup else "",
        "cleanup": kind,
        "tombstones_for": duration(compaction.tombstone_ms) if compaction else "",
        "compact_after": duration(compaction.lag_ms) if compaction and compaction.lag_ms else "",
    }


def _or_none(value: int, text: Any) -> str:
    return "none" if value < 0 else str(text(value))


def _size(value: int) -> str:
    """A size that `Size` reads back exactly."""
    if value < 0:
        return "unlimited"
    for unit, scale in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if value and value % scale == 0:
            return f"{value // scale}{unit}"
    return str(value)


routes = [
    Route("/topic/new", page(show_new), methods=["GET"]),
    Route("/topic/new", page(create), methods=["POST"]),
    Route("/topic/alter", page(show_alter), methods=["GET"]),
    Route("/topic/alter", page(alter), methods=["POST"]),
    Route("/topic/delete", page(delete), methods=["POST"]),
]
