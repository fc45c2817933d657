"""Quotas say how much of something a principal or a topic may have; here is which of them apply.

How it works. A quota is a subject, a kind and a limit, for example `user:alice write-bytes
10485760`. A `QuotaBook` holds all quotas and the groups of principals, and tells for each principal
and each topic what limits it.

Subjects
- `user:NAME`: one user.
- `group:NAME`: all members of a group together, each beside their own quotas.
- `*`: each user alone that has no quota of the same kind, neither an own nor a group's. Where
  nobody proves who they are, everybody together is one user without a name.
- `topic:NAME`: all who use one topic, together. A `*` at the end of NAME stands for any rest: each
  topic with such a name has the limit for itself. The name itself wins over patterns, and the
  longest pattern over the others.

Invariants
1. What applies depends on the quotas and groups alone, not on the order in which they were set.
2. Every limit that is told is one that somebody has set.

Not here: how a limit is kept (`buckets.py`), where quotas are stored, who the caller is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, NamedTuple

from semel.protos.errors import InvalidRequest
from semel.protos.security.rights_record import RECORD_BYTES_MAX
from semel.protos.security.rules import EVERYBODY, NAME_CHARACTERS_MAX
from semel.protos.v1.controller_pb2 import ChangeQuotasRequest
from semel.protos.v1.metadata_pb2 import Quota, RightsRecord

QUOTAS_MAX: Final = 2_000
LIMIT_MAX: Final = 1 << 62
BYTES_A_SECOND_MIN: Final = 1 << 10
"""With less, one batch would take hours."""
REMEMBERED_MAX: Final = 10_000
"""Principals and topics whose limits are remembered; beyond it all are forgotten."""


class QuotaKind(Enum):
    """What a quota limits."""

    WRITE_BYTES = "write-bytes"
    """Bytes of batches that are sent, a second."""
    READ_BYTES = "read-bytes"
    """Bytes of batches that are read, a second."""
    MESSAGES = "messages"
    """Messages that are sent, a second."""
    REQUESTS = "requests"
    """Calls, messages of produce streams and fetches, a second."""
    PRODUCERS = "producers"
    """Producers that are open on a broker group."""
    GROUPS = "groups"
    """Consumer groups with members."""
    TOPICS = "topics"
    """Topics."""
    DELAYED_BYTES = "delayed-bytes"
    """Bytes of delayed batches that wait on a broker group."""
    STAGED_BYTES = "staged-bytes"
    """Bytes that transactions have staged on a broker group."""

    @property
    def number(self) -> int:
        """The kind as it is stored."""
        return list(QuotaKind).index(self) + 1

    @classmethod
    def of(cls, number: int) -> QuotaKind:
        """The kind of a stored number. Raises InvalidRequest."""
        if not 1 <= number <= len(cls):
            raise InvalidRequest(f"kind {number} of quotas is not known here: upgrade this program")
        return list(cls)[number - 1]

    @classmethod
    def parse(cls, text: str) -> QuotaKind:
        """The kind of a name. Raises InvalidRequest."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(kind.value for kind in cls)
            raise InvalidRequest(
                f"{text[:200]!r} is nothing that a quota limits; known are {known}"
            ) from None


RATES: Final = frozenset(
    (QuotaKind.WRITE_BYTES, QuotaKind.READ_BYTES, QuotaKind.MESSAGES, QuotaKind.REQUESTS)
)
"""Kinds that are so much a second; the others are so much at a time."""
_OF_USERS: Final = frozenset((*RATES, QuotaKind.PRODUCERS, QuotaKind.GROUPS, QuotaKind.TOPICS))
_OF_TOPICS: Final = frozenset(
    (
        QuotaKind.WRITE_BYTES,
        QuotaKind.READ_BYTES,
        QuotaKind.MESSAGES,
        QuotaKind.DELAYED_BYTES,
        QuotaKind.STAGED_BYTES,
    )
)
NOBODY: Final = "user:"
"""The owner of what everybody without a name uses."""
_TOPIC: Final = "topic:"


class Limit(NamedTuple):
    """One limit of a principal or a topic."""

    kind: QuotaKind
    limit: int
    owner: str
    """The ones whose use counts, all together: `user:NAME` (`NOBODY` for everybody without a name),
    `group:NAME` or `topic:NAME`."""
    subject: str
    """What the quota was set for."""


class QuotaBook:
    """All quotas and groups, as they are at one moment; it never changes."""

    def __init__(
        self,
        quotas: Mapping[tuple[str, QuotaKind], int],
        groups: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """`quotas` are limits by subject and kind, `groups` the members (`user:NAME`) of each
        group, by its name."""
        self._by_subject: dict[str, dict[QuotaKind, int]] = {}
        for (subject, kind), limit in quotas.items():
            self._by_subject.setdefault(subject, {})[kind] = limit
        self._patterns = sorted(
            (name for name in self._by_subject if name.startswith(_TOPIC) and name.endswith("*")),
            key=lambda name: (-len(name), name),
        )
        self._members: dict[str, frozenset[str]] = {}
        self._groups: dict[str, list[str]] = {}
        for group, members in (groups or {}).items():
            self._members[f"group:{group}"] = frozenset(members)
            for member in set(members):
                self._groups.setdefault(member, []).append(f"group:{group}")
        self._known: dict[str, tuple[Limit, ...]] = {}

    @property
    def empty(self) -> bool:
        """There is no quota at all."""
        return not self._by_subject

    def of_principal(self, principal: str) -> tuple[Limit, ...]:
        """What limits `user:NAME`; empty for everybody without a name."""
        return self._remembered(principal or NOBODY, self._principal)

    def of_topic(self, name: str) -> tuple[Limit, ...]:
        """What limits all who use a topic."""
        return self._remembered(_TOPIC + name, self._topic)

    def of_group(self, group: str) -> tuple[Limit, ...]:
        """What limits the members of `group:NAME` together."""
        limits = self._by_subject.get(group, {})
        return tuple(Limit(kind, limit, group, group) for kind, limit in limits.items())

    def members_of(self, owner: str) -> frozenset[str]:
        """The users whose use counts for a limit's owner that is a user or a group."""
        return self._members.get(owner, frozenset((owner,)))

    def has_topics_with(self, kind: QuotaKind) -> bool:
        """Whether a quota of a kind is set for any topics."""
        return any(
            kind in limits
            for subject, limits in self._by_subject.items()
            if subject.startswith(_TOPIC)
        )

    def _remembered(self, owner: str, find: Callable[[str], list[Limit]]) -> tuple[Limit, ...]:
        known = self._known.get(owner)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            known = self._known[owner] = tuple(find(owner))
        return known

    def _principal(self, owner: str) -> list[Limit]:
        found: list[Limit] = []
        for subject in (owner, *sorted(self._groups.get(owner, ()))):
            limits = self._by_subject.get(subject, {})
            found += [Limit(kind, limit, subject, subject) for kind, limit in limits.items()]
        own = {limit.kind for limit in found}
        for kind, limit in self._by_subject.get(EVERYBODY, {}).items():
            if kind not in own:
                found.append(Limit(kind, limit, owner, EVERYBODY))
        return sorted(found, key=_order)

    def _topic(self, owner: str) -> list[Limit]:
        found: dict[QuotaKind, Limit] = {}
        fitting = (each for each in self._patterns if owner.startswith(each[:-1]))
        for subject in (owner, *fitting):
            for kind, limit in self._by_subject.get(subject, {}).items():
                found.setdefault(kind, Limit(kind, limit, owner, subject))
        return sorted(found.values(), key=_order)


def _order(limit: Limit) -> tuple[int, str]:
    return limit.kind.number, limit.subject


def quota_book_of(record: RightsRecord) -> QuotaBook:
    """The quotas and groups of a record. Raises InvalidRequest for one that this program does not
    understand."""
    return QuotaBook(
        {(quota.subject, QuotaKind.of(quota.kind)): quota.limit for quota in record.quotas},
        {group.name: group.members for group in record.groups},
    )


def changed_quotas(record: RightsRecord, request: ChangeQuotasRequest) -> RightsRecord:
    """The record after a change; the same object if it is so already. Raises InvalidRequest."""
    quotas = {(quota.subject, quota.kind): quota.limit for quota in record.quotas}
    groups = {f"group:{group.name}" for group in record.groups}
    for quota in request.remove:
        check_subject(quota.subject)
        gone = [key for key in quotas if key[0] == quota.subject and quota.kind in (0, key[1])]
        for key in gone:
            del quotas[key]
    for quota in request.set:
        _check_quota(quota)
        if quota.subject.startswith("group:") and quota.subject not in groups:
            raise InvalidRequest(
                f"there is no {quota.subject}: give it a member first, with `semel acl grant"
                f" --member {quota.subject.partition(':')[2]}=user:NAME`"
            )
        quotas[quota.subject, quota.kind] = quota.limit
    after = RightsRecord()
    after.CopyFrom(record)
    del after.quotas[:]
    after.quotas.extend(
        Quota(subject=subject, kind=kind, limit=limit)
        for (subject, kind), limit in sorted(quotas.items())
    )
    if after == record:
        return record
    if len(after.quotas) > QUOTAS_MAX:
        raise InvalidRequest(
            f"there would be {len(after.quotas):,} quotas, and may be {QUOTAS_MAX:,}: set them for"
            " groups of users, for topics by the beginning of their names, or for * (every user)"
        )
    after.version += 1
    if after.ByteSize() > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"all rules and quotas together would take {after.ByteSize():,} bytes, and may take"
            f" {RECORD_BYTES_MAX:,}: set quotas for groups of users, or for * (every user)"
        )
    return after


def quotas_of(record: RightsRecord, of: str) -> list[Quota]:
    """The quotas that apply to `user:NAME` or `topic:NAME`, all of them for "". Raises
    InvalidRequest."""
    if not of:
        return list(record.quotas)
    kind, _, name = check_subject(of).partition(":")
    if kind not in ("user", "topic") or of.endswith("*"):
        raise InvalidRequest(f"quotas apply to user:NAME or topic:NAME, not to {of[:200]!r}")
    book = quota_book_of(record)
    limits = book.of_topic(name) if kind == "topic" else book.of_principal(of)
    return [
        Quota(subject=each.subject, kind=each.kind.number, limit=each.limit)  # type: ignore[arg-type]
        for each in limits
    ]


def quota_changes(request: ChangeQuotasRequest) -> list[str]:
    """Lines that say, for people, what a change asks for."""
    return [
        *(f"set {quota_text(quota)}" for quota in request.set),
        *(f"remove {quota_text(quota, limit=False)}" for quota in request.remove),
    ]


def quota_text(quota: Quota, *, limit: bool = True) -> str:
    """A quota in words: `user:alice write-bytes 1048576`."""
    kind = QuotaKind.of(quota.kind).value if quota.kind else "*"
    return f"{quota.subject} {kind}" + (f" {quota.limit}" if limit else "")


def check_subject(text: str) -> str:
    """`text`, if a quota can be for it. Raises InvalidRequest."""
    kind, colon, name = text.partition(":")
    rest = name[:-1] if kind == "topic" and name.endswith("*") else name
    named = rest or (kind == "topic" and name == "*")
    if text != EVERYBODY and not (
        kind in ("user", "group", "topic")
        and colon
        and named
        and len(name) <= NAME_CHARACTERS_MAX
        and "*" not in rest
        and rest.isprintable()
        and not any(character.isspace() for character in rest)
    ):
        raise InvalidRequest(
            f"{text[:200]!r} can have no quota: write user:NAME, group:NAME, * for every other"
            " user, or topic:NAME, with a * at the end for all topics whose names begin so"
        )
    return text


def _check_quota(quota: Quota) -> None:
    check_subject(quota.subject)
    kind = QuotaKind.of(quota.kind)
    if kind not in (_OF_TOPICS if quota.subject.startswith(_TOPIC) else _OF_USERS):
        what = "a topic" if quota.subject.startswith(_TOPIC) else "a user or a group"
        known = _OF_TOPICS if quota.subject.startswith(_TOPIC) else _OF_USERS
        names = ", ".join(each.value for each in QuotaKind if each in known)
        raise InvalidRequest(f"{kind.value} cannot be limited for {what}; there it is {names}")
    least = 0
    if kind in RATES:
        of_bytes = kind in (QuotaKind.WRITE_BYTES, QuotaKind.READ_BYTES)
        least = BYTES_A_SECOND_MIN if of_bytes else 1
    if not least <= quota.limit <= LIMIT_MAX:
        raise InvalidRequest(
            f"{quota.limit} is no limit of {kind.value}: it is from {least:,} to {LIMIT_MAX:,}."
            " To forbid something, take the right to it away"
        )
