"""Compares the index of message ids of one node with what the log says.

Not here: what the log says (`tests/checking/message_ids.py`).
"""

from __future__ import annotations

from semel.broker.dedup.fingerprints import Fingerprints
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.replica.replica import Replica
from semel.protos.columns import Columns
from tests.checking.id_topics import IdTopic


def check_index(replica: Replica, topic_id: int, topic: IdTopic, *, damaged: bool) -> str:
    """The first difference, of a node that has applied the whole log; empty if there is none.

    `damaged`: something may have damaged the index.

    Each id that the topic ever stored is looked up: those in the window must be found, each with
    its content and place, and all others must not; nor do those count that were cancelled.
    """
    window = replica.state.id_windows.topics[topic_id]
    cancelled = sorted(each for each in topic.cancelled if each >= topic.first_arrival)
    if window.cancelled.tolist() != cancelled:
        return f"{window.cancelled.tolist()} are cancelled, and not {cancelled}"
    superseded = sorted(each for each in topic.superseded if each >= topic.first_arrival)
    if window.superseded.tolist() != superseded:
        return f"{window.superseded.tolist()} are superseded, and not {superseded}"
    if topic.base is None:
        return "" if not window.ids else f"{window.ids} ids of which the log does not know"
    if (window.first_arrival, window.next_arrival) != (topic.first_arrival, topic.next_arrival):
        return (
            f"a window from {window.first_arrival} to {window.next_arrival}, not from"
            f" {topic.first_arrival} to {topic.next_arrival}"
        )
    index = replica.ids.index_of(topic_id)
    if index is None:
        return "there is no index"
    if index.end_arrival != topic.next_arrival:
        return f"the index ends at {index.end_arrival}, not {topic.next_arrival}"
    names, held = list(topic.newest), topic.held()
    if not names:
        return ""
    messages = [topic.at(topic.newest[name]).message for name in names]
    columns = Columns.from_arrow(
        [message.value for message in messages],
        keys=[message.key for message in messages],
        message_ids=names,
    )
    fingerprints = Fingerprints(topic.settings.seed)
    assert columns.message_ids is not None
    keys, digests = fingerprints.keys(columns.message_ids), fingerprints.digests(columns)
    try:
        search = index.search_memory(keys, window.first_arrival)
        hits = index.search_disk(search, keys, window.first_arrival).hits
        places = index.places_of(hits.arrivals)
    except CorruptIndex as error:
        # Else nobody has read what rotted; `MessageIds` would begin anew.
        return "" if damaged else f"the index cannot be read, and nothing has damaged it: {error}"
    found = {names[row]: at for at, row in enumerate(hits.rows.tolist())}
    for row, name in enumerate(names):
        at, wanted = found.get(name), held.get(name)
        arrival = None if at is None else int(hits.arrivals[at])
        if arrival in topic.cancelled or arrival in topic.superseded:
            at = arrival = None
        if arrival != wanted:
            return f"id {name!r} is found as {arrival}, and arrived as {wanted}"
        if at is None or wanted is None:
            continue
        if hits.digests[at] != digests[row]:
            return f"id {name!r} is found with another content"
        told = tuple(int(column[at]) for column in places[:3])
        if told != tuple(topic.at(wanted).place):
            return f"id {name!r} is found at {told}, not {topic.at(wanted).place}"
    return ""
