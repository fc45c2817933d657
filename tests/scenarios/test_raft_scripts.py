"""Every script in `raft/` prints what it says; cores with known bugs do not get through."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.broker.raft import RaftCore
from tests.scenarios.raft_script import Script
from tests.sim import planted

DIRECTORY = Path(__file__).parent / "raft"
SCRIPTS = sorted(DIRECTORY.glob("*.txt"))


def _read(name: str) -> str:
    return (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_it_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert Script().run(text) == text


@pytest.mark.parametrize(
    ("name", "bug", "trust_completions"),
    [
        ("election", planted.AcknowledgesBeforeSync, False),
        ("election", planted.TellsVoteBeforeSync, False),
        ("figure7", planted.MatchesWithoutLooking, False),
        ("figure7", planted.NeverTruncates, False),
        ("figure8", planted.CommitsPriorTermsByCounting, False),
        ("figure8e", planted.VotesForOldLogs, False),
        ("high_commit", planted.CommitsBeyondMatched, False),
        ("duplicates", planted.TruncatesWithoutConflict, False),
        ("single_node", planted.CommitsBeforeOwnSync, False),
        ("stale_sync", planted.TrustsEveryCompletion, True),
        ("stale_sync", RaftCore, True),
        ("snapshot", planted.TakesEntriesWhileInstalling, False),
        ("restart", planted.VotesTwice, False),
        ("read_index", planted.ReadsBeforeOwnCommit, False),
        ("stopped_process", planted.ReadsWithoutAsking, False),
        ("check_quorum", planted.MasterForever, False),
        ("membership", planted.ChangesMembersTooEarly, False),
        ("membership_2015", planted.ChangesMembersTooEarly, False),
        ("membership_truncated", planted.KeepsTruncatedMembership, False),
    ],
)
def test_a_script_catches_its_bug(name: str, bug: type[RaftCore], trust_completions: bool) -> None:
    text = _read(name)
    try:
        output = Script(bug, trust_completions=trust_completions).run(text)
    except Exception:
        return
    assert output != text


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("behind", range(7))
def test_a_slave_catches_up_wherever_the_master_compacted(first: int, behind: int) -> None:
    """The snapshot boundary: every number of missing entries, every index to compact at."""
    script = Script()

    def do(*commands: str) -> str:
        return "\n".join(line for command in commands for line in script._execute(command))

    do("group 1 2 3", "start", "timeout 1", "settle ticks 2")
    do(f"propose 1 {6 - behind}", "settle ticks 2")
    do("cut 3 1 2", f"propose 1 {behind}", "settle ticks 1")
    assert (do(f"compact 1 {first}") == "refused") == (first == 1)
    do("crash 3", "heal", "start 3", "settle ticks 3")
    assert bool(script._offers) == (first > 8 - behind), "only when entries are missing"
    if script._offers:
        do("pull 3", "install 3", "settle ticks 2")
    nodes = list(script.nodes.values())
    assert {(node.applied_index, node.digest) for node in nodes} == {(7, nodes[0].digest)}
