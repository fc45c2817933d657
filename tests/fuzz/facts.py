"""What a cluster has that nobody may change who was not allowed to; and whether all of it is there.

How it works. Before an assault there are topics, messages, a consumer group's offset, a user, rules
and quotas. `facts_of` reads all of that, and what else a request could bring about, as plain
values. Callers without rights must leave it as it was, but for what bears their own name.

Not here: a program that goes on during the assault, and what the nodes' logs tell (`witness.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from semel.client import Client
from semel.client.admin.descriptions import QueueDescription
from semel.protos.errors import SemelError

GUARDED: Final = "guarded"
"""A topic that nobody of the assault may see."""
OPEN: Final = "open"
"""A topic that some may read."""
GUARDED_GROUP: Final = "guarded-group"
GUARDED_USER: Final = "alice"
PASSWORD: Final = "correct horse battery"
_MESSAGES: Final = 20

Facts = dict[str, Any]


def make_facts(client: Client, *, ruled: bool) -> None:
    """Makes what `facts_of` reads."""
    for topic in (GUARDED, OPEN):
        client.admin.create_topic(topic, queues=2)
        with client.producer(f"{topic}-writer") as producer:
            for number in range(_MESSAGES):
                producer.send(topic, b"%d" % number, key=b"%d" % number)
            producer.flush()
    with client.consumer(GUARDED_GROUP, [GUARDED]) as consumer:
        read = 0
        while read < _MESSAGES:
            read += len(consumer.poll(timeout=1.0))
        consumer.commit()
    client.admin.set_quotas(f"topic:{GUARDED}", {"write-bytes": 1 << 40})
    if ruled:
        client.admin.add_user(GUARDED_USER, PASSWORD)


def facts_of(client: Client, *, ruled: bool) -> Facts:
    """Everything that must stay, by names that a difference can be told with."""
    admin = client.admin
    status = admin.cluster_status()
    facts: Facts = {
        "topics": sorted(one.name for one in admin.list_topics()),
        "consumer groups": sorted(admin.list_groups()),
        "producers": sorted(f"{one.name} {one.epoch}" for one in admin.list_producers()),
        "quotas": sorted(f"{one.subject} {one.kind} {one.limit}" for one in admin.quotas()),
        "members": {
            group.id: sorted((node.id, node.address) for node in group.nodes)
            for group in status.groups
        },
        "controllers": sorted(one.address for one in status.controllers),
        "offsets": _told(lambda: _offsets(client)),
    }
    for topic in (GUARDED, OPEN):
        facts[f"topic {topic}"] = _told(partial(_topic, client, topic))
        facts[f"messages of {topic}"] = _told(partial(_messages, client, topic))
    if ruled:
        facts["rules"] = admin.access_rules().as_dict()
        facts["users"] = sorted(f"{one.user} {one.changed_s}" for one in admin.list_users())
    return facts


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or the name of the error: a topic that is gone is a fact, too."""
    try:
        return ask()
    except SemelError as error:
        return type(error).__name__


def _offsets(client: Client) -> Any:
    return {
        f"{each.topic}/{each.queue}": each.committed_offset
        for each in client.admin.describe_group(GUARDED_GROUP).queues
    }


def _topic(client: Client, topic: str) -> Any:
    described = client.admin.describe_topic(topic)
    queues = {f"queue {one.queue}": _queue(one) for one in described.queues}
    return {"id": described.topic_id, "settings": str(described.settings), **queues}


def _queue(one: QueueDescription) -> tuple[int, ...]:
    return (
        *(one.group, one.slot_start, one.slot_end, one.sealed),
        *(one.log_start_offset, one.log_end_offset, one.delayed_messages),
    )


def _messages(client: Client, topic: str) -> Any:
    with client.reader(topic, start="earliest", end="latest") as reader:
        return sorted((one.queue, one.offset, one.value) for one in reader)


def differences(before: Facts, after: Facts, *, own: str) -> list[str]:
    """What was changed, other than things whose names begin with `own`."""
    found = []
    for name in before:
        was, is_now = (_without(facts[name], own) for facts in (before, after))
        if was != is_now:
            found.append(f"{name}: {_shown(was, is_now)}")
    return found


def _without(value: Any, own: str) -> Any:
    if isinstance(value, list):
        return [each for each in value if not (isinstance(each, str) and each.startswith(own))]
    return value


def _shown(was: Any, is_now: Any) -> str:
    if isinstance(was, Mapping) and isinstance(is_now, Mapping):
        keys = [key for key in {**was, **is_now} if was.get(key) != is_now.get(key)]
        return ", ".join(f"{key}: {was.get(key)} became {is_now.get(key)}" for key in keys)
    return f"{was} became {is_now}"


def unreadable(client: Client) -> list[str]:
    """Reads every topic to its end, with every way of reading; returns what could not be read."""
    found = []
    for topic in sorted(one.name for one in client.admin.list_topics()):
        try:
            read_everything(client, topic)
        except (SemelError, AssertionError, ValueError) as error:
            found.append(f"topic {topic} cannot be read: {type(error).__name__}: {error}")
    return found


def read_everything(client: Client, topic: str) -> int:
    """Reads a topic with every way of reading; returns the number of messages."""
    count = 0
    with client.reader(topic, start="earliest", end="latest") as reader:
        for message in reader:
            assert message.value is not None or message.key is not None
            count += 1
            _ = (message.headers, message.message_id, message.timestamp_us)
    rows = 0
    with client.reader(topic, start="earliest", end="latest") as reader:
        while (table := reader.poll_arrow(timeout=1.0)) is not None and table.num_rows:
            table.validate(full=True)
            rows += table.num_rows
    assert rows == count, f"{rows} rows, {count} messages"
    return count
