"""The rules for topics that compare message ids: which settings are possible, and their seed.

How it works. A topic's wanted settings of dedup come without a seed. When comparing begins, they
get a fresh random one; while it goes on, they keep it. It stays between controllers and brokers:
whoever knows it can make ids that collide.

Invariants
1. The seed never changes while a topic compares ids, and no second comparing of it has the same.
2. Comparing does not begin while a change of settings is not applied on every group: a group that
   still has the window of an earlier comparing would refuse the other seed for ever.
3. The window's part of a broker group fits on the disk of each of its nodes, as far as reported.

Not here: when these rules are asked (`topics.py`), the windows (the broker).
"""

from __future__ import annotations

import secrets
from typing import Protocol

from semel.controller.topics.setting_levels import GroupLevels, require_level
from semel.controller.topics.splits import open_queues
from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.id_dedup import SEED_BYTES, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN
from semel.protos.levels import ID_LEVEL
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1.common_pb2 import IdDedup, TopicSettings
from semel.protos.v1.metadata_pb2 import TOPIC_STATE_ACTIVE, TopicRecord


class GroupFacts(GroupLevels, Protocol):
    """The facts about broker groups that comparing ids depends on."""

    def disk_bytes(self, group_id: int) -> int | None:
        """Size of the smallest disk of the group's nodes; None when none has told it."""


def complete_dedup(given: IdDedup) -> IdDedup:
    """The settings of dedup as they are stored, without a seed. Raises InvalidRequest."""
    if not WINDOW_BYTES_MIN <= given.window_bytes <= WINDOW_BYTES_MAX:
        raise InvalidRequest(
            f"dedup by id: a window of {given.window_bytes:,} bytes; it has at least"
            f" {WINDOW_BYTES_MIN:,} (1 MiB)"
        )
    if given.keep_ms < -1:
        raise InvalidRequest(
            f"dedup by id: keep_ms is {given.keep_ms}: use a positive number, or -1 for no limit"
        )
    if given.seed:
        raise InvalidRequest("dedup by id: leave the seed out; the controller makes it")
    return IdDedup(
        window_bytes=given.window_bytes,
        keep_ms=max(0, given.keep_ms),
        keep_first=given.keep_first,
    )


def change_settings(
    record: TopicRecord, wanted: TopicSettings, level: int, groups: GroupFacts
) -> None:
    """Gives a record other settings, whose dedup has no seed yet. `level` is the metadata's.

    Raises InvalidRequest, UnsupportedVersion, and Throttled while comparing cannot begin yet.
    """
    before = TopicSettings()
    before.CopyFrom(record.settings)
    compared, compares = before.HasField("dedup"), wanted.HasField("dedup")
    if compared != compares and record.state != TOPIC_STATE_ACTIVE:
        raise Throttled(f"topic {record.name!r} is being created; ask again", retry_after_ms=100)
    if compares and not compared and record.settings_pending:
        raise Throttled(
            f"the last change of topic {record.name!r} is not on all its broker groups; ask again",
            retry_after_ms=100,
        )
    record.settings.CopyFrom(wanted)
    if not compares:
        return
    if compared:
        record.settings.dedup.seed = before.dedup.seed
    else:
        begin(record, level, groups)
    if wanted.dedup.window_bytes != before.dedup.window_bytes:
        _require_room(record, groups)


def begin(record: TopicRecord, level: int, groups: GroupFacts) -> None:
    """Gives a record whose settings have dedup a fresh seed. Raises like `change_settings`."""
    require_level(record, ID_LEVEL, level, groups)
    _require_room(record, groups)
    record.settings.dedup.seed = secrets.token_bytes(SEED_BYTES)


def without_seed(settings: TopicSettings) -> TopicSettings:
    """The settings as clients may see them."""
    shown = TopicSettings()
    shown.CopyFrom(settings)
    if shown.HasField("dedup"):
        shown.dedup.ClearField("seed")
    return shown


def _require_room(record: TopicRecord, groups: GroupFacts) -> None:
    slots: dict[int, int] = {}
    for queue in open_queues(record):
        width = queue.slot_end - queue.slot_start
        slots[queue.group_id] = slots.get(queue.group_id, 0) + width
    window = record.settings.dedup.window_bytes
    for group_id, share in sorted(slots.items()):
        disk, part = groups.disk_bytes(group_id), window * share // SLOT_COUNT
        if disk is not None and part > disk:
            raise InvalidRequest(
                f"dedup by id: of a window of {window:,} bytes broker group {group_id} would hold"
                f" {part:,}, and the smallest disk of its nodes has {disk:,}: give a smaller"
                " window, or spread the topic over more groups"
            )
