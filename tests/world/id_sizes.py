"""Sizes of a world whose topics compare message ids: windows and indexes are so small that all that
happens to them happens all the time.

Not here: the worlds themselves (`parts/ids.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from semel.broker.background import delayed_release
from semel.broker.dedup import id_index, id_runs, moved_ids, run_copies
from semel.broker.replica import id_indexes
from semel.broker.replica import replica as replica_module
from semel.broker.replica.message_ids import MessageIds
from semel.broker.server import moves_service
from semel.broker.state.admission import id_admission
from semel.protos.v1 import common_pb2
from tests.checking.id_topics import ID_BYTES
from tests.world.plan import Plan
from tests.world.registry import random_of

TOPICS: Final = ("payments", "clicks")
_SEED: Final = b"0123456789abcdef"


class Sizes:
    """The sizes of one world."""

    def __init__(self, plan: Plan) -> None:
        random = random_of(plan, "sizes of ids")
        self.memory_ids = random.choice((4, 10, 30))
        self.runs_per_level = random.choice((2, 3))
        self.look_s = random.choice((0.02, 0.1))
        self.pool = random.choice((12, 40, 150))
        """How many ids there are."""
        self.topics = [
            common_pb2.IdDedup(
                window_bytes=ID_BYTES * random.choice((6, 25, 100)),
                keep_ms=random.choice((0, 0, 300, 1_500)),
                keep_first=random.random() < 0.3,
                seed=_SEED,
            )
            for _ in TOPICS
        ]
        random = random_of(plan, "what else is in worlds of ids")
        self.retention_bytes = random.choice((0, 0, 2_000))
        self.cancels = random.random() < 0.6
        self.moves = random.random() < 0.4
        self.queues = 2
        self.groups = [1]
        self.runs_per_window = random_of(plan, "runs of a window").choice((1, 1, 2, 6))
        if plan.more_groups:
            self.queues, self.groups = random.choice(((2, [1]), (2, [1, 2]), (3, [1, 2])))
        self.delay_us_max = 700_000
        self.share_delayed = 0.4 if self.cancels else 0.2
        if "waiting" in plan.parts:
            self.cancels = self.moves = True
            self.delay_us_max, self.share_delayed = 2_500_000, 0.7

    def exchanged(self) -> list[tuple[Any, str, Any]]:
        """Constants of the product that are smaller here."""
        return [
            (id_index, "RUNS_PER_LEVEL", self.runs_per_level),
            (id_index, "RUNS_PER_WINDOW", self.runs_per_window),
            (id_index, "LEVEL_IDS", self.memory_ids),
            (id_index, "MERGE_IDS", 8),
            (id_runs, "CHUNK_IDS", 4),
            (id_runs, "PART_PLACES", 3),
            (run_copies, "PIECE_CHUNKS", 2),
            (moved_ids, "PORTION_IDS", 3),
            (moves_service, "PASS_IDS", 5),
            (run_copies, "PIECE_PARTS", 2),
            (id_indexes, "LOOK_S", self.look_s),
            (delayed_release, "LOOK_S", 0.01 if self.cancels else delayed_release.LOOK_S),
            (id_admission, "WINDOW_BYTES_MIN", ID_BYTES),
            (replica_module, "MessageIds", partial(MessageIds, memory_ids=self.memory_ids)),
        ]
