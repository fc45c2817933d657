"""Facts at the store: the newest count, damage is noticed, and old ones go. Who may write changes
hands."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.protos.ids import QueueId
from semel.tier import (
    CorruptTier,
    ForeignTier,
    GarbagePolicy,
    Identity,
    Store,
    TierMisconfigured,
    claim,
    collect,
    identity_of,
    newest_facts,
    open_store,
    owner_of,
    put_facts,
    take_over,
)
from semel.tier.facts import decode_facts, read_facts
from tests.kit.tier_facts import some_facts

QUEUE = some_facts().queue


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(f"file://{tmp_path}")
    claim(opened, "c")
    return opened


def test_the_newest_facts_count(store: Store) -> None:
    assert newest_facts(store, "c", QUEUE) is None
    made = [
        some_facts(number=number, time_us=time_us, nonce=str(time_us))
        for number, time_us in ((2, 9), (3, 5), (3, 4), (1, 99))
    ]
    names = [put_facts(store, each) for each in made]
    assert newest_facts(store, "c", QUEUE) == (names[1], made[1])
    policy = GarbagePolicy()
    gone = collect(store, "c", QUEUE, lambda: None, now_us=1 << 60, policy=policy)
    assert sorted(gone) == sorted(set(names) - {names[1]})
    assert newest_facts(store, "c", QUEUE) == (names[1], made[1])


def test_facts_are_read_as_they_were_and_damage_is_noticed(store: Store) -> None:
    facts = some_facts()
    data = facts.encode()
    assert decode_facts("f", data) == facts
    none = some_facts(number=0, length=0, sha256="")
    assert decode_facts("f", none.encode()) == none
    for cut in range(0, len(data), 7):
        with pytest.raises(CorruptTier):
            decode_facts("f", data[:cut])
    with pytest.raises(CorruptTier, match="names manifest 3"):
        decode_facts("f", some_facts(sha256="").encode())
    with pytest.raises(CorruptTier, match="damaged"):
        decode_facts("f", data.replace(b'"slice":"', b'"slice":"!'))
    name = put_facts(store, facts)
    store.put(name, data[:-3] + b'9"}')
    with pytest.raises(CorruptTier, match="its SHA-256 differs"):
        read_facts(store, "c", QUEUE, name)
    store.put(name, data)
    other = QUEUE._replace(queue_id=QueueId(QUEUE.queue_id + 1))
    with pytest.raises(CorruptTier, match="another queue"):
        read_facts(store, "c", other, name)


def test_a_tier_is_taken_over_once_and_its_old_owner_is_refused(store: Store) -> None:
    assert identity_of(store) == Identity("c", "c")
    with pytest.raises(ForeignTier, match="belongs to cluster 'c', not 'x'"):
        take_over(store, "new", "x")
    assert take_over(store, "new", "c") == Identity("new", "c")
    assert take_over(store, "new", "c") == Identity("new", "c")
    assert claim(store, "new") == "c"
    with pytest.raises(ForeignTier, match="belongs to cluster 'new', this is 'c'"):
        claim(store, "c")
    with pytest.raises(ForeignTier, match="does not belong to cluster 'c' any more"):
        collect(store, "c", QUEUE, lambda: None, now_us=0, policy=GarbagePolicy())
    collect(store, "c", QUEUE, lambda: None, now_us=0, policy=GarbagePolicy(), owner="new")
    # A cluster that was restored is lost in its turn.
    assert take_over(store, "third", "new") == Identity("third", "c")
    assert owner_of(store) == "third"


def test_what_is_no_tier_is_not_taken_over(tmp_path: Path) -> None:
    with pytest.raises(TierMisconfigured, match="no tier of a cluster"):
        take_over(open_store(f"file://{tmp_path}"), "new", "c")
    assert not list(tmp_path.iterdir())
