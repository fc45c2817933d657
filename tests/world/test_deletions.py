"""Whole clusters whose topics are deleted while messages for them wait: each has an outcome."""

from __future__ import annotations

import pytest

from tests.world.parts.deletions import leaves_messages_behind_forgotten_intakes
from tests.world.soak import first_failure, run_until_seen

DELETIONS = ("alone", "deletions")


@pytest.mark.timeout(300)
def test_messages_of_topics_that_are_deleted_have_an_outcome_in_time() -> None:
    wanted = {"at rest": 8, "topic deleted while messages waited": 20}
    run_until_seen(range(20), wanted, more=DELETIONS)


@pytest.mark.timeout(300)
def test_a_message_that_is_left_behind_is_found() -> None:
    """As the client once did; seed 3 found it then."""
    plant = leaves_messages_behind_forgotten_intakes
    first_failure(range(3, 33), plant, match="no outcome in time", more=DELETIONS)
