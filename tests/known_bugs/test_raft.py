"""Known bugs of Raft implementations: each one absent here, and noticed when it is planted.

The table in `docs/testing.md` says where each was found. Scenarios run against the real core on
simulated disks, under the checker of `tests/sim`, and against the real log on files that forget;
several are the scripts of `tests/scenarios/raft`. The simulator looks for what nobody knows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from semel.broker.log import checkpoint, recovery
from semel.broker.log.active import ActiveSegment
from semel.broker.log.files import File
from semel.broker.log.hard_state import HardStateFile
from semel.broker.log.segment import ID_BYTES, IDS_AT, frames_at
from semel.broker.raft import RaftCore
from semel.protos.errors import CorruptSegment
from semel.protos.ids import NodeId
from tests.kit.disk import PowerCut, SimFile, SimFiles
from tests.kit.log_entries import SMALL, WAIT_S, everything, fill, frames, opened
from tests.kit.slave import Slave, append
from tests.known_bugs import cores
from tests.known_bugs.planting import breaks_when_planted
from tests.scenarios.raft_script import Script
from tests.sim import planted

SCRIPTS = Path(__file__).parents[1] / "scenarios" / "raft"
Core = type[RaftCore]


def holds_but_not_with(bug: Core, scenario: Callable[[Core], None], *, match: str) -> None:
    """The scenario passes with the real core, and fails saying `match` with the other one."""
    scenario(RaftCore)
    with pytest.raises(AssertionError, match=match):
        scenario(bug)


def script(name: str, *, careless_log: bool = False) -> Callable[[Core], None]:
    """The scenario that a script prints what it says."""
    text = (SCRIPTS / f"{name}.txt").read_text(encoding="utf-8")

    def scenario(core: Core) -> None:
        careless = careless_log and core is not RaftCore
        output = Script(core, trust_completions=careless).run(text)
        assert output == text, "the script prints something else"

    return scenario


OTHERWISE = "prints something else"


class Group(Script):
    """Three nodes, driven by the commands of the scripts."""

    def __init__(self, core: Core, *commands: str) -> None:
        super().__init__(core)
        self.do("group 1 2 3", *commands)

    def do(self, *commands: str) -> list[str]:
        return [line for command in commands for line in self._execute(command)]


# --- what must be durable -----------------------------------------------------------------------


def test_one_vote_a_term_though_all_crash_at_any_step_of_an_election() -> None:
    """pysyncobj, barge: the vote was not durable when it was told."""
    steps = (
        *("timeout 1", "deliver 1 *", "deliver * 1", "sync 1", "deliver 1 *"),
        *("sync 2", "sync 3", "deliver * 1", "deliver 1 *", "sync 1", "sync 2", "sync 3"),
        *("deliver * 1", "sync 1"),
    )

    def scenario(core: Core) -> None:
        for count in range(len(steps) + 1):
            group = Group(core, "disks manual", "start", *steps[:count])
            group.do("crash 1", "crash 2", "crash 3", "drop * *", "disks auto")
            group.do("start 2 3", "timeout 3", "settle ticks 2", "start 1", "settle ticks 2")
            group.do("propose 3", "settle ticks 2")
            assert {node.applied_index for node in group.nodes.values()} != {0}

    holds_but_not_with(planted.TellsVoteBeforeSync, scenario, match="before that is durable")
    holds_but_not_with(planted.VotesTwice, script("restart"), match="vote")


def _vote_and_crash() -> None:
    """Saved means durable; a crash at any operation leaves the old state or the new one."""
    path = Path("/node/hard_state")
    before, after = (3, NodeId(1)), (5, NodeId(2))
    for crash_at in range(12):
        for survives in (0.0, 0.5, 1.0):
            disk = SimFiles()
            disk.make_directory(path.parent)
            HardStateFile(path, disk).save(*before)
            disk.operations, disk.crash_at = 0, crash_at
            try:
                HardStateFile(path, disk).save(*after)
                wanted = [after]
            except PowerCut:
                wanted = [before, after]
            restarted = disk.restart(random.Random(crash_at), survives)
            assert HardStateFile(path, restarted).load() in wanted, "the vote is another"


def test_a_saved_vote_is_durable() -> None:
    """pysyncobj ≤ 0.3.14: written, and not synced."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        write = HardStateFile._write

        def unsynced(self: HardStateFile, file: File, state: tuple[int, int, NodeId]) -> None:
            with pytest.MonkeyPatch.context() as without:
                without.setattr(SimFile, "sync", lambda self: None)
                write(self, file, state)

        patch.setattr(HardStateFile, "_write", unsynced)

    breaks_when_planted(_vote_and_crash, plant, match="the vote is another")


def test_term_and_vote_change_together() -> None:
    """barge: two writes, and a crash between them."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        save = HardStateFile.save

        def in_two_steps(self: HardStateFile, term: int, voted_for: NodeId | None) -> None:
            save(self, term, None)
            save(self, term, voted_for)

        patch.setattr(HardStateFile, "save", in_two_steps)

    breaks_when_planted(_vote_and_crash, plant, match="the vote is another")


def test_an_acknowledged_entry_is_durable_at_the_slave() -> None:
    """etcd #14370, NATS JetStream: acknowledged out of memory."""

    def scenario(core: Core) -> None:
        group = Group(core, "start", "timeout 1", "settle ticks 2", "disks manual 2 3")
        group.do("propose 1", "deliver 1 *", "deliver * 1")
        assert group.nodes[NodeId(1)].core.commit_index == 1
        group.do("crash 2", "crash 3", "start 2 3", "disks auto", "settle ticks 4")

    holds_but_not_with(
        planted.AcknowledgesBeforeSync, scenario, match="acknowledges 1, and only 0 is durable"
    )


def test_a_master_counts_itself_after_its_own_sync() -> None:
    """etcd: one slave and a memory are no quorum of disks."""

    def scenario(core: Core) -> None:
        group = Group(core, "start", "timeout 1", "settle ticks 2", "disks manual 1", "cut 1 3")
        group.do("propose 1", "settle")
        assert group.nodes[NodeId(1)].core.commit_index == 1
        group.do("sync 1", "settle")
        assert group.nodes[NodeId(1)].core.commit_index == 2

    holds_but_not_with(planted.CommitsBeforeOwnSync, scenario, match="durable copies only on")


def test_the_writer_reports_what_the_disk_has() -> None:
    """The same below Raft: a completion comes after its sync."""

    def scenario() -> None:
        disk = SimFiles()
        with closing(opened(disk)) as log:
            fill(log, frames(1, 6))
            with closing(opened(disk.restart(survives=0.0))) as again:
                assert everything(again) == frames(1, 6), "reported, and lost"

    def plant(patch: pytest.MonkeyPatch) -> None:
        def no_sync(self: ActiveSegment) -> None:
            self.dirty_since = None
            self.durable_index = self.written_index

        patch.setattr(ActiveSegment, "sync", no_sync)

    breaks_when_planted(scenario, plant, match="reported, and lost")


def test_a_stale_completion_does_not_count_for_what_replaced_its_entry() -> None:
    """etcd/raft, asynchronous storage: the ABA case, the same (index, term) written twice."""
    scenario = script("stale_sync", careless_log=True)
    holds_but_not_with(planted.TrustsEveryCompletion, scenario, match="and only 1 is durable")


def test_a_failed_sync_is_never_tried_again() -> None:
    """fsyncgate: the second fsync succeeds, and the pages of the first are gone."""

    def scenario() -> None:
        disk = SimFiles()
        reported: list[int] = []
        ended = threading.Event()
        sync = SimFile.sync
        failures = [OSError(5, "input/output error")]

        def drops_pages_once(self: SimFile) -> None:
            if failures:
                self._inode.pending.clear()
                raise failures.pop()
            sync(self)

        def on_synced(index: int, term: int) -> None:
            reported.append(index)
            ended.set()

        with closing(opened(disk)) as log:
            fill(log, frames(1, 3))
            log.on_synced = on_synced
            log.on_failure = lambda error: ended.set()
            with pytest.MonkeyPatch.context() as kernel:
                kernel.setattr(SimFile, "sync", drops_pages_once)
                log.append(frames(3, 6))
                assert ended.wait(WAIT_S)
        assert not failures, "the fault has not bitten"
        try:
            found = opened(disk.restart(survives=0.0))
        except CorruptSegment:
            raise AssertionError("reported, and lost") from None
        with closing(found):
            assert found.last_index >= max(reported, default=2), "reported, and lost"

    def plant(patch: pytest.MonkeyPatch) -> None:
        once = ActiveSegment.sync

        def again(self: ActiveSegment) -> None:
            try:
                once(self)
            except OSError:
                once(self)

        patch.setattr(ActiveSegment, "sync", again)

    breaks_when_planted(scenario, plant, match="reported, and lost")


# --- what is committed, and what may be cut -------------------------------------------------------


def test_entries_of_an_old_term_are_not_committed_by_counting() -> None:
    """LogCabin #44: figure 8 of the Raft paper."""
    holds_but_not_with(
        planted.CommitsPriorTermsByCounting, script("figure8"), match="is committed|term"
    )


def test_an_append_without_a_conflict_cuts_nothing() -> None:
    """akka-raft, willemt #37, pysyncobj: late, repeated and shortened APPENDs cut the log."""
    terms = [1, 1, 2, 2, 3]
    windows = [(at, count) for at in range(6) for count in range(6 - at)]

    def scenario(core: Core) -> None:
        for first in windows:
            for second in windows:
                slave = Slave(terms, core)
                for previous, count in (first, second):
                    slave.take(append(terms, previous, count, 0))
                assert slave.terms == terms, f"{second} behind {first} cut the log"
                assert slave.truncations == []

    holds_but_not_with(planted.TruncatesWithoutConflict, scenario, match="cut the log")
    holds_but_not_with(planted.NeverTruncates, script("figure7"), match="here and .* there")


def test_a_commit_index_counts_only_up_to_what_matches() -> None:
    """copycat #265: an empty APPEND with a high commit index over a divergent tail."""
    holds_but_not_with(planted.CommitsBeyondMatched, script("high_commit"), match="committed")


# --- snapshots ------------------------------------------------------------------------------------


def test_a_slave_catches_up_wherever_the_log_was_compacted() -> None:
    """Scylla #9551 and others: off by one where the log ends and the snapshot begins."""

    def scenario(core: Core) -> None:
        for first in range(2, 9):
            for behind in range(7):
                group = Group(core, "start", "timeout 1", "settle ticks 2")
                group.do(f"propose 1 {6 - behind}", "settle ticks 2", "cut 3 1 2")
                group.do(f"propose 1 {behind}", "settle ticks 1", f"compact 1 {first}")
                group.do("crash 3", "heal", "start 3", "settle ticks 3")
                if group._offers:
                    group.do("pull 3", "install 3", "settle ticks 2")
                nodes = list(group.nodes.values())
                found = {(node.applied_index, node.digest) for node in nodes}
                assert found == {(7, nodes[0].digest)}, f"compacted at {first}, {behind} behind"

    holds_but_not_with(cores.TakesAnOfferForTheSnapshot, scenario, match="is durable")


def test_a_late_snapshot_does_not_replace_a_log_that_went_on() -> None:
    """RedisRaft #43: a snapshot of an earlier master arrives when entries have done its work."""

    def scenario(core: Core) -> None:
        group = Group(core, "start", "timeout 1", "settle ticks 1", "cut 3 1 2")
        group.do("propose 1 6", "settle ticks 1", "compact 1 5", "heal", "settle ticks 3")
        group.do("transfer 1 2", "settle ticks 3")  # node 2 has all entries, and sends them
        slave = group.nodes[NodeId(3)]
        assert slave.applied_index == 8
        group.do("pull 3")
        if slave.core._installing:
            group.do("install 3")
        assert (slave.applied_index, slave.disk.last_index) == (8, 8), "applied, and gone"

    holds_but_not_with(cores.InstallsEverySnapshot, scenario, match="over 8, which it ack|gone")


def test_a_snapshot_file_is_whole_before_it_counts() -> None:
    """etcd/raft: renamed before it was synced; the power fails at every operation."""

    def scenario() -> None:
        for crash_at in range(12):
            disk = SimFiles()
            with closing(opened(disk)) as log:
                fill(log, frames(1, 6))
                log.save_checkpoint(3, 1, [b"old"])
                log._store.keeper.drain()
                disk.operations, disk.crash_at = 0, crash_at
                with suppress(PowerCut):
                    log.save_checkpoint(5, 1, [b"new" * 400, b"er"])
                for survives in (0.0, 0.5, 1.0):
                    with closing(opened(disk.restart(survives=survives))) as again:
                        found = again.checkpoint
                        assert found is not None, "both are gone"
                        wanted = {3: b"old", 5: b"new" * 400 + b"er"}
                        assert found.payload == wanted[found.index]

    def plant(patch: pytest.MonkeyPatch) -> None:
        write = checkpoint._write

        class NeverSynced:
            def __init__(self, file: File) -> None:
                self.write, self.close = file.write, file.close

            def sync(self) -> None:
                pass

        patch.setattr(checkpoint, "_write", lambda file, *rest: write(NeverSynced(file), *rest))  # type: ignore[arg-type]

    breaks_when_planted(scenario, plant, match="both are gone")


# --- reads, members, liveness ---------------------------------------------------------------------


def test_a_master_that_was_stopped_answers_no_read_of_its_past() -> None:
    """etcd #7331, #20418: SIGSTOP, another master, SIGCONT."""
    holds_but_not_with(
        planted.ReadsWithoutAsking, script("stopped_process"), match="a read at 2 misses|prints"
    )


def test_a_new_master_answers_reads_after_an_entry_of_its_own() -> None:
    """The commit index that it brings may be an old one."""
    holds_but_not_with(planted.ReadsBeforeOwnCommit, script("read_index"), match="misses|prints")


def test_a_new_master_commits_an_entry_before_it_changes_members() -> None:
    """Ongaro's bug of 2015 in single-server changes: two quorums that do not meet."""
    holds_but_not_with(
        planted.ChangesMembersTooEarly, script("membership_2015"), match="was committed"
    )


def test_a_truncated_change_of_members_is_undone() -> None:
    """RedisRaft #17: the configuration outlived its entry."""
    holds_but_not_with(
        planted.KeepsTruncatedMembership, script("membership_truncated"), match="its log in"
    )


@pytest.mark.parametrize("bug", [cores.StandsWithoutAsking, cores.LetsItsMasterDown])
def test_one_cut_link_moves_no_mastership(bug: Core) -> None:
    """Cloudflare's outage of 2020 with etcd: terms rose for hours."""

    def scenario(core: Core) -> None:
        group = Group(core, "start", "timeout 1", "settle ticks 2", "cut 1 3", "settle ticks 40")
        master = group.nodes[NodeId(1)].core
        assert (master.role.name, master.term) == ("MASTER", 1), "mastership moved"
        group.do("propose 1", "settle ticks 2")
        assert master.commit_index == 2
        group.do("heal", "settle ticks 3")
        assert (master.role.name, master.term) == ("MASTER", 1), "mastership moved"

    holds_but_not_with(bug, scenario, match="mastership moved|NotMaster")


def test_a_master_that_hears_nobody_steps_down() -> None:
    """The other half of it: check-quorum."""
    holds_but_not_with(planted.MasterForever, script("check_quorum"), match=OTHERWISE)


def test_a_master_whose_disk_hangs_stops_to_beat() -> None:
    """hashicorp/raft #503: beats went on, and nobody took over."""
    holds_but_not_with(cores.BeatsWithAHangingDisk, script("disk_stall"), match=OTHERWISE)


# --- torn or rotten -------------------------------------------------------------------------------


def _damage_the_end(*, durable: bool) -> tuple[SimFiles, list[bytes]]:
    """Entries 1 to 5; of entry 4 frame and ID are bad, and 5 proves whether 4 was durable."""
    disk, wanted = SimFiles(), frames(1, 6)
    with closing(opened(disk)) as log:
        fill(log, wanted[:3])
        if durable:
            fill(log, wanted[3:4])
            fill(log, wanted[4:])
        else:
            fill(log, wanted[3:])
        found = disk.copy()
    image = found.image(found.find("segment-")[0])
    image[frames_at(SMALL.ids_per_segment) + 3 * len(wanted[0]) + 20] ^= 1
    image[IDS_AT + 3 * ID_BYTES + 3] ^= 1
    return found, wanted


def _torn_and_rotten() -> None:
    torn, wanted = _damage_the_end(durable=False)
    try:
        log = opened(torn)
    except CorruptSegment:
        raise AssertionError("a torn tail is taken for rot") from None
    with closing(log):
        assert everything(log) == wanted[:3]
    rotten, _ = _damage_the_end(durable=True)
    halted = ""
    try:
        opened(rotten).close()
    except CorruptSegment as error:
        halted = error.message
    assert "entry 4" in halted, "rot is taken for a torn tail: a committed entry is cut"


def test_what_is_known_to_have_been_durable_is_never_cut() -> None:
    """FAST'18, protocol-aware recovery: a damaged entry was truncated, and then lost everywhere."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(recovery._Walk, "_durable_through", lambda self, ids: self._checkpoint_index)

    breaks_when_planted(_torn_and_rotten, plant, match="rot is taken")


def test_what_was_torn_by_a_crash_halts_nobody() -> None:
    """The reverse: a node that had acknowledged nothing wrong would not start any more."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        def all_of_it(self: recovery._Walk, ids: list[object]) -> int:
            return self._header.first_index + sum(one is not None for one in ids)

        patch.setattr(recovery._Walk, "_durable_through", all_of_it)

    breaks_when_planted(_torn_and_rotten, plant, match="a torn tail is taken")
