"""The client's tests pass where Arrow is not installed, too, but for those that are about Arrow."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from tools.source_tree import ROOT

CLIENT: Final = "tests/unit/client"
ABOUT_ARROW: Final = (
    f"{CLIENT}/core/test_batching.py::test_arrow_of_any_kind_is_taken",
    f"{CLIENT}/core/test_batching.py::test_few_messages_take_the_short_way_to_the_same_batch",
    f"{CLIENT}/core/test_message_ids.py::test_a_column_of_ids_routes_as_a_column_of_the_same_keys",
    f"{CLIENT}/core/test_message_ids.py::test_the_limit_depends_on_the_topic",
    f"{CLIENT}/producer/test_delayed_intake.py::"
    "test_every_row_of_a_bulk_is_in_one_batch_with_its_due_time_and_id",
    f"{CLIENT}/producer/test_traced_intake.py::test_a_bulk_call",
    f"{CLIENT}/test_message.py::test_messages_are_what_was_sent_whichever_way_they_are_decoded",
)
"""They give arrays of Arrow to the client, or ask it for some."""


@pytest.mark.parametrize(
    "names",
    [
        ("core/test_batching.py", "core/test_message_ids.py", "core/test_splitting.py"),
        ("core/test_dropped_rows.py", "core/test_sealed_window.py", "test_message.py"),
        ("producer",),
        ("dead_letters", "transactions", "consumer/test_membership.py"),
    ],
    ids=" ".join,
)
def test_the_client_s_tests_pass_without_arrow(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.kit.without_arrow"),
            *("-p", "no:cacheprovider"),
            *(f"--deselect={name}" for name in ABOUT_ARROW),
            *(f"{CLIENT}/{name}" for name in names),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]
