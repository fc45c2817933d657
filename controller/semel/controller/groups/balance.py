"""The assignment of a consumer group: a balanced one that moves as few queues as possible.

How it works. A queue may go to the members that subscribe to its topic. Four steps:

1. Every queue stays with its owner if that member is still there and still subscribes.
2. Every free queue goes to the member with the fewest queues among those that may have it; topics
   with few subscribers first, since they have the least choice.
3. While there is a chain of hand-overs from a member to one that has at least two queues fewer
   (A gives one to B, B gives one of another topic to C, …), it is carried out, shortest first, from
   the fullest member. Members with equal subscriptions need no chains; they are levelled first.
4. A queue that a chain moved without need goes back to its former owner: if that owner has fewer
   queues, or in exchange for a queue that the owner did not have before either.

This is the optimal semi-matching of Harvey, Ladner, Lovász and Tamir ("Semi-matchings for
bipartite graphs and load balancing", 2003): it ends exactly when no load-reducing chain is left.

Invariants of the result
1. Every queue of a subscribed topic has one owner, which subscribes to it.
2. Among members with the same subscriptions the numbers of queues differ by at most one. Members
   with different subscriptions: no queue can be handed on, directly or by a chain, to a member with
   at least two queues fewer than its owner; so the greatest load is the least possible.
3. If all members subscribe to the same, no assignment that is as balanced moves fewer queues. With
   c different subscriptions at most (2c - 1) * (A - B) / 2 queues move, where A and B are the sums
   of the squares of the members' loads before and after steps 3 and 4: every chain lowers that sum
   by 2 at least, and the shortest one passes members with equal subscriptions only next to each
   other, two at most.
4. The same input gives the same result; the order of mappings does not matter.

Not here: membership (`group.py`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence, Set

from semel.protos.ids import QueueKey

Assignment = dict[str, list[QueueKey]]
"""Queues of each member, in rising order."""


def balance(
    subscriptions: Mapping[str, Set[int]],
    queues: Mapping[int, Sequence[QueueKey]],
    current: Mapping[str, Sequence[QueueKey]],
) -> Assignment:
    """The target assignment of one group.

    `subscriptions`: topic ids of each member. `queues`: all queues of each topic id; a topic that
    is missing has none. `current`: the queues that each member had; unknown members and queues are
    ignored.
    """
    return _Balancer(subscriptions, queues, current).result()


class _Balancer:
    def __init__(
        self,
        subscriptions: Mapping[str, Set[int]],
        queues: Mapping[int, Sequence[QueueKey]],
        current: Mapping[str, Sequence[QueueKey]],
    ) -> None:
        self._members = sorted(subscriptions)
        self._topics = {
            member: frozenset(topic for topic in subscriptions[member] if topic in queues)
            for member in self._members
        }
        self._subscribers: dict[int, list[str]] = defaultdict(list)
        for member in self._members:
            for topic in sorted(self._topics[member]):
                self._subscribers[topic].append(member)
        # The queues of each member by topic; each list is a stack: the last one is handed on first.
        self._held: dict[str, dict[int, list[QueueKey]]] = {m: {} for m in self._members}
        self._load = dict.fromkeys(self._members, 0)
        self._keep(queues, current)
        self._fill(queues)
        self._level()
        if len(set(self._topics.values())) > 1:
            self._chain()
            self._return()

    def result(self) -> Assignment:
        return {
            member: sorted(queue for held in self._held[member].values() for queue in held)
            for member in self._members
        }

    def _keep(
        self,
        queues: Mapping[int, Sequence[QueueKey]],
        current: Mapping[str, Sequence[QueueKey]],
    ) -> None:
        existing = {queue for topic in self._subscribers for queue in queues[topic]}
        self._owners: dict[QueueKey, str] = {}
        for member in self._members:
            for queue in sorted(current.get(member, ())):
                if (
                    queue in existing
                    and queue not in self._owners
                    and queue.topic_id in self._topics[member]
                ):
                    self._owners[queue] = member
                    self._give(member, queue)

    def _fill(self, queues: Mapping[int, Sequence[QueueKey]]) -> None:
        topics = sorted(self._subscribers, key=lambda t: (len(self._subscribers[t]), t))
        for topic in topics:
            heap = [(self._load[member], member) for member in self._subscribers[topic]]
            heapq.heapify(heap)
            for queue in sorted(queues[topic]):
                if queue not in self._owners:
                    load, member = heap[0]
                    self._give(member, queue)
                    heapq.heapreplace(heap, (load + 1, member))

    def _level(self) -> None:
        """Evens out members with equal subscriptions, from the fullest to the emptiest."""
        classes: dict[frozenset[int], list[str]] = defaultdict(list)
        for member in self._members:
            classes[self._topics[member]].append(member)
        for members in classes.values():
            fullest = [(-self._load[member], member) for member in members]
            emptiest = [(self._load[member], member) for member in members]
            heapq.heapify(fullest)
            heapq.heapify(emptiest)
            while -fullest[0][0] > emptiest[0][0] + 1:
                giver, taker = fullest[0][1], emptiest[0][1]
                self._hand_over(giver, taker, self._fullest_topic(giver))
                heapq.heapreplace(fullest, (-self._load[giver], giver))
                heapq.heapreplace(emptiest, (self._load[taker], taker))

    def _chain(self) -> None:
        moved = True
        while moved:
            moved = False
            least = min(self._load.values())
            for giver in sorted(self._members, key=lambda m: (-self._load[m], m)):
                if self._load[giver] < least + 2:
                    break
                chain = self._find_chain(giver)
                if chain:
                    for one, topic, other in chain:
                        self._hand_over(one, other, topic)
                    moved = True
                    break

    def _find_chain(self, giver: str) -> list[tuple[str, int, str]]:
        """The shortest chain of hand-overs to a member with at least two queues fewer."""
        limit = self._load[giver] - 2
        came: dict[str, tuple[str, int]] = {}
        seen_topics: set[int] = set()
        reached = {giver}
        pending = deque([giver])
        while pending:
            member = pending.popleft()
            for topic in sorted(t for t, held in self._held[member].items() if held):
                if topic in seen_topics:
                    continue
                seen_topics.add(topic)
                for other in self._subscribers[topic]:
                    if other in reached:
                        continue
                    reached.add(other)
                    came[other] = (member, topic)
                    if self._load[other] <= limit:
                        return self._unwind(came, giver, other)
                    pending.append(other)
        return []

    def _unwind(
        self, came: Mapping[str, tuple[str, int]], giver: str, last: str
    ) -> list[tuple[str, int, str]]:
        chain = []
        while last != giver:
            one, topic = came[last]
            chain.append((one, topic, last))
            last = one
        return chain

    def _return(self) -> None:
        """Gives moved queues back to their former owners where the loads allow that, or in exchange
        for a queue that the owner did not have before."""
        moved = [
            (queue, member)
            for member in self._members
            for held in self._held[member].values()
            for queue in held
            if self._owners.get(queue, member) != member
        ]
        for queue, member in moved:
            owner = self._owners[queue]
            if queue not in self._held[member][queue.topic_id]:
                continue  # exchanged meanwhile
            if self._load[owner] >= self._load[member]:
                other = self._foreign(owner, self._topics[member])
                if other is None:
                    continue
                self._held[owner][other.topic_id].remove(other)
                self._load[owner] -= 1
                self._give(member, other)
            self._held[member][queue.topic_id].remove(queue)
            self._load[member] -= 1
            self._give(owner, queue)

    def _foreign(self, member: str, topics: Set[int]) -> QueueKey | None:
        """A queue of these topics that the member has but did not have before."""
        for topic, held in self._held[member].items():
            if topic in topics:
                for queue in held:
                    if self._owners.get(queue) != member:
                        return queue
        return None

    def _fullest_topic(self, member: str) -> int:
        return max(self._held[member].items(), key=lambda item: (len(item[1]), -item[0]))[0]

    def _give(self, member: str, queue: QueueKey) -> None:
        self._held[member].setdefault(queue.topic_id, []).append(queue)
        self._load[member] += 1

    def _hand_over(self, giver: str, taker: str, topic: int) -> None:
        queue = self._held[giver][topic].pop()
        self._load[giver] -= 1
        self._give(taker, queue)
