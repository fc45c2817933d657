"""Which quotas apply to whom, and what a change of them may say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest, Throttled
from semel.protos.security.meters import Meters
from semel.protos.security.quotas import (
    NOBODY,
    QUOTAS_MAX,
    QuotaBook,
    QuotaKind,
    changed_quotas,
    quota_text,
    quotas_of,
)
from semel.protos.v1.controller_pb2 import ChangeQuotasRequest
from semel.protos.v1.metadata_pb2 import PrincipalGroup, Quota, RightsRecord
from semel.protos.v1.metadata_pb2 import QuotaKind as Number

WRITE, READ, MESSAGES, TOPICS = (
    QuotaKind.WRITE_BYTES,
    QuotaKind.READ_BYTES,
    QuotaKind.MESSAGES,
    QuotaKind.TOPICS,
)
GROUPS = {"etl": ["user:alice", "user:bob"]}


def quota(subject: str, kind: QuotaKind, limit: int) -> Quota:
    return Quota(subject=subject, kind=kind.number, limit=limit)  # type: ignore[arg-type]


def record(*quotas: Quota) -> RightsRecord:
    members = [PrincipalGroup(name=name, members=each) for name, each in GROUPS.items()]
    return changed_quotas(RightsRecord(groups=members), ChangeQuotasRequest(set=quotas))


def test_every_stored_number_is_the_kind_of_that_name() -> None:
    for kind in QuotaKind:
        name = f"QUOTA_KIND_{kind.value.replace('-', '_').upper()}"
        assert Number.Name(kind.number) == name
        assert QuotaKind.of(kind.number) is kind
    assert len(Number.values()) == len(QuotaKind) + 1


def test_own_group_and_default_limits() -> None:
    book = QuotaBook(
        {
            ("user:alice", WRITE): 5,
            ("group:etl", WRITE): 8,
            ("*", WRITE): 1,
            ("*", READ): 2,
        },
        GROUPS,
    )

    def limits(principal: str) -> list[tuple[str, int, str, str]]:
        return [
            (each.kind.value, each.limit, each.owner, each.subject)
            for each in book.of_principal(principal)
        ]

    assert limits("user:alice") == [
        ("write-bytes", 8, "group:etl", "group:etl"),
        ("write-bytes", 5, "user:alice", "user:alice"),
        ("read-bytes", 2, "user:alice", "*"),
    ]
    assert limits("user:bob") == [
        ("write-bytes", 8, "group:etl", "group:etl"),
        ("read-bytes", 2, "user:bob", "*"),
    ]
    assert limits("user:carol") == [
        ("write-bytes", 1, "user:carol", "*"),
        ("read-bytes", 2, "user:carol", "*"),
    ]
    assert limits("") == [("write-bytes", 1, NOBODY, "*"), ("read-bytes", 2, NOBODY, "*")]


def test_a_topic_has_the_limit_of_its_name_or_of_its_longest_pattern() -> None:
    quotas = {
        ("topic:*", WRITE): 1,
        ("topic:*", READ): 9,
        ("topic:clicks-*", WRITE): 2,
        ("topic:clicks-eu", WRITE): 3,
    }
    for _ in range(3):
        items = list(quotas.items())
        random.shuffle(items)  # the order must not matter
        book = QuotaBook(dict(items))
        found = {
            name: {each.kind: (each.limit, each.owner) for each in book.of_topic(name)}
            for name in ("clicks-eu", "clicks-us", "clicks-", "other")
        }
        assert found["clicks-eu"][WRITE] == (3, "topic:clicks-eu")
        assert found["clicks-us"][WRITE] == (2, "topic:clicks-us")
        assert found["clicks-"][WRITE] == (2, "topic:clicks-")
        assert found["other"] == {WRITE: (1, "topic:other"), READ: (9, "topic:other")}


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(["user:alice", "user:carol", "group:etl", "*"]),
            st.sampled_from([WRITE, MESSAGES]),
        ),
        st.integers(2_000, 9_000),
    ),
    st.sampled_from(["user:alice", "user:bob", "user:carol"]),
)
def test_what_applies_to_a_user_is_what_the_rule_in_words_says(
    quotas: dict[tuple[str, QuotaKind], int], user: str
) -> None:
    groups = ["group:etl"] if user in GROUPS["etl"] else []
    expected = set()
    for kind in (WRITE, MESSAGES):
        own = {
            (subject, quotas[subject, kind])
            for subject in (user, *groups)
            if (subject, kind) in quotas
        }
        default = {(user, quotas["*", kind])} if ("*", kind) in quotas else set()
        expected |= {(kind, *each) for each in own or default}
    found = QuotaBook(quotas, GROUPS).of_principal(user)
    assert {(each.kind, each.owner, each.limit) for each in found} == expected


def test_changes_set_replace_and_remove() -> None:
    first = record(quota("user:alice", WRITE, 4_096), quota("user:alice", TOPICS, 0))
    assert first.version == 1
    assert [quota_text(each) for each in first.quotas] == [
        "user:alice write-bytes 4096",
        "user:alice topics 0",
    ]
    again = ChangeQuotasRequest(set=[quota("user:alice", WRITE, 4_096)])
    assert changed_quotas(first, again) is first
    other = ChangeQuotasRequest(
        set=[quota("*", READ, 1_024)],
        remove=[quota("user:alice", TOPICS, 0)],
    )
    second = changed_quotas(first, other)
    assert (second.version, len(second.quotas)) == (2, 2)
    assert [quota_text(each) for each in quotas_of(second, "user:alice")] == [
        "user:alice write-bytes 4096",
        "* read-bytes 1024",
    ]
    assert quotas_of(second, "topic:any") == []
    gone = ChangeQuotasRequest(remove=[Quota(subject="user:alice")])
    assert [each.subject for each in changed_quotas(second, gone).quotas] == ["*"]


@pytest.mark.parametrize(
    ("subject", "kind", "limit", "told"),
    [
        ("alice", WRITE, 5_000, "can have no quota: write user:NAME"),
        ("user:", WRITE, 5_000, "can have no quota"),
        ("user:a*", WRITE, 5_000, "can have no quota"),
        ("user:a b", WRITE, 5_000, "can have no quota"),
        ("topic:a*b", WRITE, 5_000, "can have no quota"),
        ("group:nobody", WRITE, 5_000, "there is no group:nobody: give it a member first"),
        ("user:alice", WRITE, 0, "0 is no limit of write-bytes: it is from 1,024 to"),
        ("user:alice", MESSAGES, 0, "0 is no limit of messages: it is from 1 to"),
        ("user:alice", TOPICS, 1 << 63, "is no limit of topics"),
        ("topic:orders", TOPICS, 5, "topics cannot be limited for a topic; there it is write-byt"),
        ("user:alice", QuotaKind.STAGED_BYTES, 5, "staged-bytes cannot be limited for a user"),
    ],
)
def test_bad_quotas_are_one_clear_error(
    subject: str, kind: QuotaKind, limit: int, told: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        record(quota(subject, kind, limit))
    assert told in refused.value.message


def test_too_many_quotas_are_refused_and_nothing_changes() -> None:
    full = record(*(quota(f"user:u{n}", WRITE, 5_000) for n in range(QUOTAS_MAX)))
    with pytest.raises(InvalidRequest, match=r"there would be 2,001 quotas, and may be 2,000"):
        changed_quotas(full, ChangeQuotasRequest(set=[quota("user:more", WRITE, 5_000)]))
    assert len(full.quotas) == QUOTAS_MAX


def test_a_record_of_a_newer_program_leaves_the_quotas_of_before() -> None:
    meters = Meters(lambda: 0.0)
    meters.take(record(quota("user:alice", MESSAGES, 7)))
    newer = record(quota("user:alice", MESSAGES, 7))
    newer.version = 9
    newer.quotas.add(subject="user:alice", kind=200, limit=1)
    with pytest.raises(InvalidRequest, match="upgrade this program"):
        meters.take(newer)
    assert meters.rates_of_principal("user:alice").messages[0].bucket.rate == 7


def test_members_of_a_group_share_a_meter_and_others_have_their_own() -> None:
    meters = Meters(lambda: 0.0)
    meters.take(record(quota("group:etl", WRITE, 5_000), quota("*", WRITE, 2_000)))
    rates = {name: meters.rates_of_principal(f"user:{name}") for name in ("alice", "bob", "x", "y")}
    assert rates["alice"].write_bytes == rates["bob"].write_bytes
    assert rates["x"].write_bytes[0] is not rates["y"].write_bytes[0]
    before = rates["x"].write_bytes[0]
    changed = record(quota("*", WRITE, 3_000))
    changed.version = 2
    meters.take(changed)
    assert meters.rates_of_principal("user:x").write_bytes[0] is before
    assert before.bucket.rate == 3_000
    assert meters.rates_of_principal("user:alice").write_bytes[0].bucket.rate == 3_000


def test_who_waits_for_a_quota_that_is_removed_goes_on() -> None:
    meters = Meters(lambda: 0.0)
    meters.take(record(quota("user:alice", WRITE, 1_024)))
    meter = meters.rates_of_principal("user:alice").write_bytes[0]
    meter.take(1 << 30, 0.0)
    mark = meter.take(1, 0.0)
    assert meter.bucket.left_s(mark, 0.0) > 1e5
    removed = RightsRecord(version=2)
    meters.take(removed)
    assert meter.bucket.left_s(mark, 0.001) == 0.0
    assert not meters.active


def test_requests_beyond_the_rate_are_told_when_to_come_back() -> None:
    now_s = 0.0
    meters = Meters(lambda: now_s)
    meters.take(record(quota("user:alice", QuotaKind.REQUESTS, 10)))
    passed = 0
    while now_s < 5:
        try:
            meters.take_request("user:alice")
            passed += 1
        except Throttled as error:
            now_s += max(1, error.retry_after_ms) / 1000
    assert 59 <= passed <= 62  # one second's worth at once, ten each second, and one
    meters.take_request("user:bob")


def test_a_count_of_a_group_is_that_of_its_members() -> None:
    meters = Meters(lambda: 0.0)
    meters.take(record(quota("group:etl", TOPICS, 5), quota("*", TOPICS, 2)))
    counts = {"user:alice": 3, "user:bob": 2, "user:carol": 1, "": 2}
    reached = {user: meters.reached(user, TOPICS, lambda who: counts[who]) for user in counts}
    assert reached["user:carol"] is None
    assert {user: (found[0].owner, found[1]) for user, found in reached.items() if found} == {
        "user:alice": ("group:etl", 5),
        "user:bob": ("group:etl", 5),
        "": (NOBODY, 2),
    }
