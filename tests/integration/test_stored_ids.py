"""Real nodes recompute from their logs which messages were stored twice under one id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semel.broker.dedup import looked_up
from semel.broker.dedup.id_rows import Known, decide_rows
from tests.kit.brokers import QUEUE, BrokerGroup, RawClient
from tests.kit.id_senders import begin, ids


def forgetful(prints: Any, known: Known, *arguments: Any, **options: Any) -> Any:
    """Decides as a master with a bug would, which finds no id again."""
    nothing = np.zeros(len(known.hits.rows), np.bool_)
    known = Known(known.hits.take(nothing), known.places.take(nothing))
    return decide_rows(prints, known, *arguments, **options)


@pytest.mark.parametrize("bug", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_planted_duplicate_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: bool, checkpoint: bool
) -> None:
    group = BrokerGroup(tmp_path, nodes=1)
    async with group:
        one, two = await begin(group)
        await one.send(ids(0, 40))
        if checkpoint:
            await (await group.master()).checkpoints.write()
        if bug:
            monkeypatch.setattr(looked_up, "decide_rows", forgetful)
        await two.send(ids(37, 50))
        async with RawClient((await group.master()).address) as client:
            found = (await client.verify())[QUEUE]
        assert found.id_duplicates == (3 if bug else 0)
        assert found.messages == (53 if bug else 50)
        assert not found.problems
        assert found.table_matches
