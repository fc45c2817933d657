"""Bugs in dedup by message id, for the worlds of `parts/ids.py` to find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from semel.broker.dedup import id_index, id_rows, id_runs, looked_up
from semel.broker.dedup.id_index import IdIndex
from semel.broker.dedup.id_places import Found, Places
from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.dedup.looked_up import LookedUp
from semel.broker.dedup.sorted_ids import Hits, SortedIds
from semel.broker.replica.id_indexes import Lacking
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.proposer import Proposer
from semel.broker.replica.replica import Replica
from semel.broker.state.apply.id_windows import IdWindow, IdWindows
from semel.broker.state.apply.results import StateDiverged
from semel.client.core import batching
from semel.protos.errors import Unavailable
from semel.protos.few_rows import FewRows


def keeps_ids_of_lost_entries() -> AbstractContextManager[object]:
    """The index is not cut back when mastership is lost."""
    return patch.object(MessageIds, "on_lost", lambda _: None)


def overlooks_ids_in_flight() -> AbstractContextManager[object]:
    """What was accepted since the look-up began does not count."""
    return patch.object(IdIndex, "search_since", lambda *_: Hits.none())


def stores_repeats_within_a_batch() -> AbstractContextManager[object]:
    """Nobody looks whether two messages of one batch have one id."""
    nothing = np.zeros(0, np.int64)
    return patch.object(id_rows, "repeated", lambda *_: (nothing, nothing))


def writes_checkpoints_before_the_index() -> AbstractContextManager[object]:
    """A checkpoint counts ids that a crash may still take out of the index."""

    async def nothing(*_: object) -> None:
        pass

    return patch.object(MessageIds, "settle", nothing)


def forgets_one_id_too_many() -> AbstractContextManager[object]:
    eviction = IdWindow.eviction

    def bad(self: IdWindow, first_arrival: int, next_arrival: int, *rest: Any) -> int:
        found = eviction(self, first_arrival, next_arrival, *rest)
        return min(found + 1, next_arrival) if found > first_arrival else found

    return patch.object(IdWindow, "eviction", bad)


def finds_what_is_forgotten() -> AbstractContextManager[object]:
    """An id counts as long as the index has it, wherever the window begins."""
    begin: Any = LookedUp.__init__
    decide = LookedUp.decide

    def bad_begin(self: LookedUp, *arguments: Any) -> None:
        begin(self, *arguments[:-1], 0)

    def bad_decide(self: LookedUp, **options: Any) -> Any:
        return decide(self, **{**options, "first_arrival": 0})

    plants = ExitStack()
    plants.enter_context(patch.object(LookedUp, "__init__", bad_begin))
    plants.enter_context(patch.object(LookedUp, "decide", bad_decide))
    return plants


def loses_ids_between_the_parts_of_a_merge() -> AbstractContextManager[object]:
    cut = SortedIds.cut

    def bad(self: SortedIds, key_end: int) -> tuple[SortedIds, SortedIds]:
        below, rest = cut(self, key_end)
        return below, SortedIds(rest.columns[:, 1:])

    return patch.object(SortedIds, "cut", bad)


def drops_a_run_too_early() -> AbstractContextManager[object]:
    """The run in which the window begins is dropped with those before it."""
    drop = IdIndex._drop

    def bad(self: IdIndex, first_arrival: int) -> bool:
        ends = [run.info.end_arrival for run in self._view.runs]
        later = [end for end in ends[:-1] if end > first_arrival]
        dropped = drop(self, later[0] if later and first_arrival else first_arrival)
        return bool(dropped)

    return patch.object(IdIndex, "_drop", bad)


def names_wrong_places() -> AbstractContextManager[object]:
    """The place of the message behind the first one."""
    find = Places.find

    def bad(self: Places, arrivals: Any) -> Found:
        found = find(self, arrivals)
        return found._replace(offsets=np.where(found.offsets < 0, -1, found.offsets + 1))

    return patch.object(Places, "find", bad)


def takes_conflicts_for_duplicates() -> AbstractContextManager[object]:
    decide = id_rows.decide_rows

    def bad(*arguments: Any, **options: Any) -> Any:
        return decide(*arguments, **{**options, "keep_first": True})

    return patch.object(looked_up, "decide_rows", bad)


def stands_without_its_ids() -> AbstractContextManager[object]:
    """A node whose index lacks ids becomes master, and a master stays one."""
    plants = ExitStack()
    plants.enter_context(patch.object(Replica, "_on_ids_behind", lambda *_: None))
    plants.enter_context(patch.object(Replica, "_resign_unfit", lambda _: None))
    return plants


def takes_damage_for_new_ids() -> AbstractContextManager[object]:
    find = id_runs.find_in_runs

    def bad(*arguments: Any) -> list[Hits]:
        try:
            return find(*arguments)
        except CorruptIndex:
            return []

    return patch.object(id_index, "find_in_runs", bad)


def never_says_that_it_lacks_ids() -> AbstractContextManager[object]:
    """Nobody learns that all have lost the ids."""
    lend = MessageIds.lend

    async def bad(self: MessageIds, *arguments: Any, **options: Any) -> Any:
        found = await lend(self, *arguments, **options)
        if isinstance(found, Lacking):
            raise Unavailable("ask again")
        return found

    return patch.object(MessageIds, "lend", bad)


def misses_what_the_window_left_behind() -> AbstractContextManager[object]:
    """A restart goes back to an older window, and takes dropped runs for lost ones."""
    missing = IdIndex.missing

    def bad(self: IdIndex, first_arrival: int) -> list[range]:
        known, self._left_behind = self._left_behind, 0
        try:
            return missing(self, first_arrival)
        finally:
            self._left_behind = known

    return patch.object(IdIndex, "missing", bad)


def acknowledges_retries_of_what_was_dropped() -> AbstractContextManager[object]:
    """The retry of a batch of which messages were dropped is told that all of it is stored."""
    answer = Proposer._answer_duplicate

    def bad(self: Proposer, item: Any, stored: Any) -> None:
        answer(self, item, replace(stored, dropped=False))

    return patch.object(Proposer, "_answer_duplicate", bad)


def decides_about_position_marks() -> AbstractContextManager[object]:
    """A batch without messages has no decision about ids, and apply takes that for a mistake."""
    take = IdWindows.take

    def bad(self: IdWindows, queue_key: Any, *rest: Any) -> Any:
        if self.checked is None and queue_key.topic_id in self.topics:
            raise StateDiverged("a batch does not follow the decision about its ids")
        return take(self, queue_key, *rest)

    return patch.object(IdWindows, "take", bad)


def scatters_few_ids() -> AbstractContextManager[object]:
    """The SDK sends few messages with ids and without keys to any queue."""
    routing_keys = batching._routing_keys

    def bad(chunk: Any, given: Any, topic: Any) -> Any:
        return given.keys if isinstance(given, FewRows) else routing_keys(chunk, given, topic)

    return patch.object(batching, "_routing_keys", bad)


PLANTS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str, Iterable[int]]] = {
    "keeps ids of lost entries": (
        keeps_ids_of_lost_entries,
        "message ids:|halts: CorruptIndex",
        range(140, 300),
    ),
    "overlooks ids in flight": (overlooks_ids_in_flight, "is stored at", range(10)),
    "stores repeats within a batch": (stores_repeats_within_a_batch, "is stored at", range(10)),
    "checkpoints before the index": (
        writes_checkpoints_before_the_index,
        "nothing has lost them",
        range(12, 24),
    ),
    "forgets one id too many": (forgets_one_id_too_many, "forgets too much", range(10)),
    "finds what is forgotten": (finds_what_is_forgotten, "not in the window", range(10)),
    "loses ids in a merge": (loses_ids_between_the_parts_of_a_merge, "", range(54, 154)),
    "drops a run too early": (drops_a_run_too_early, "", range(10)),
    "names wrong places": (names_wrong_places, "were dropped, and not", range(10)),
    "conflicts are duplicates": (takes_conflicts_for_duplicates, "as a duplicate of", range(10)),
    "stands without its ids": (stands_without_its_ids, "serves as master", (56, 122, 158, 162)),
    "takes damage for new ids": (takes_damage_for_new_ids, "message ids:", (32, 49)),
    "never says that it lacks ids": (never_says_that_it_lacks_ids, "not at rest", range(29, 49)),
    "misses what was left behind": (
        misses_what_the_window_left_behind,
        "nothing has lost them",
        range(20),
    ),
    "decides about position marks": (decides_about_position_marks, "node", range(10)),
    "acknowledges what was dropped": (
        acknowledges_retries_of_what_was_dropped,
        "were dropped, and not",
        range(10),
    ),
    "scatters few ids": (scatters_few_ids, "holds its id", (4, 9)),
}
"""Each with words of its error, and seeds of which one at least finds it."""
