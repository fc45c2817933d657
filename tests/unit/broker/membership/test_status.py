"""The mark of a node that nobody counts: there before anything else, gone when all is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.config import BrokerConfig
from semel.broker.identity import BEFORE_FOUNDINGS, NodeIdentity
from semel.broker.log import HardStateFile
from semel.broker.membership import status as status_module
from semel.broker.membership.founding import ControllersSay, Decision, MemberSays, Step
from semel.broker.membership.status import MembershipStatus
from semel.broker.raft import Role
from semel.broker.repair.quarantine import MARK_NAME
from semel.protos.errors import DataDirectoryError, InvalidRequest, NotMaster, Unavailable
from semel.protos.ids import GroupId, NodeId
from semel.protos.v1 import broker_pb2
from tests.kit.disk import PowerCut, SimFiles

DATA = Path("/node")
MARK = DATA / MARK_NAME
ALL = frozenset(map(NodeId, (1, 2, 3)))


class Core:
    """What Raft knows of being counted."""

    def __init__(self) -> None:
        self.non_counting = False
        self.membership = SimpleNamespace(nodes=ALL, voters=ALL)
        self.commit_index = 0
        self.master_id: int | None = 2
        self.role = Role.SLAVE
        self.on_counted: Callable[[], None] = lambda: None

    def set_non_counting(self, non_counting: bool) -> None:
        self.non_counting = non_counting
        if not non_counting:
            self.on_counted()


class Replica:
    """A node that applies what it is told to have applied."""

    def __init__(self) -> None:
        self.core = Core()
        self.state = SimpleNamespace(applied_index=0)
        self.log = SimpleNamespace(last_index=0)
        self.peers = SimpleNamespace(reachable={}, hear=lambda index, nodes: False)
        self.applied = asyncio.Event()
        self.asked_for = 0
        self.role_changed = asyncio.Event()

    @property
    def non_counting(self) -> bool:
        return self.core.non_counting

    async def wait_applied(self, index: int, timeout_s: float | None) -> None:
        self.asked_for = index
        await self.applied.wait()

    async def role_change(self) -> None:
        await self.role_changed.wait()


class Asked(MembershipStatus):
    """Others answer what the test says."""

    readmitted: int | None = None
    heard: dict[NodeId, MemberSays]
    word: ControllersSay | None = None

    async def _readmit(self) -> int | None:
        return self.readmitted

    async def _look_around(self) -> None:
        pass

    async def _ask_controllers(self, request: Any) -> ControllersSay | None:
        if request.complete_id and self.word is not None:
            assert request.complete_id == self.word.founding
            self.word = ControllersSay(founding=self.word.founding, founded=True)
        return self.word

    async def _ask_peers(self) -> Any:
        return {
            node: SimpleNamespace(
                founding_id=says.founding,
                prepared_id=says.prepared,
                commit_index=0,
                log_end_index=int(says.has_history),
                knows_foundings=says.knows_foundings,
                members=[SimpleNamespace(node=SimpleNamespace(node_id=one)) for one in ALL],
            )
            for node, says in self.heard.items()
        }


def node(disk: SimFiles, **settings: Any) -> Asked:
    """A node that has opened its directory; it is non-counting if it must be."""
    config = BrokerConfig(
        data=DATA,
        cluster_id="c",
        group_id=GroupId(1),
        node_id=NodeId(1),
        listen="h1:1",
        members={NodeId(number): f"h{number}:1" for number in ALL},
        **settings,
    )
    identity = NodeIdentity(config, disk)
    identity.open()
    hard_state = HardStateFile(DATA / "hard_state", disk)
    replica: Any = Replica()
    status = Asked(config, replica, disk, identity, hard_state)
    status.heard = {}
    replica.core.non_counting = status.begin(log_lost=False)
    return status


def marked(disk: SimFiles) -> bool:
    """Whether the mark is there, whatever a power failure takes along."""
    return MARK in disk.restart(survives=0.0).names_now


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "_ASK_AGAIN_S", 0)


@pytest.fixture
async def running() -> Any:
    """Starts a status's task; ends what was started."""
    tasks: list[asyncio.Task[None]] = []

    def start(status: MembershipStatus) -> None:
        tasks.append(asyncio.create_task(status.run()))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def lost() -> SimFiles:
    """The directory of a node that has just learnt that it is empty in a group that is founded."""
    disk = SimFiles()
    status = node(disk)
    status._identity.found("x")
    return disk


# --- the mark


def test_the_mark_is_durable_before_the_node_says_a_word() -> None:
    disk = SimFiles()
    assert node(disk)._replica.non_counting
    assert marked(disk)


def test_a_mark_that_is_found_is_made_durable() -> None:
    """A process that was killed while it wrote the mark has left it in memory only."""
    disk = SimFiles()
    status = node(disk)
    status._identity.found("x")
    disk.remove(MARK)
    disk.sync_directory(DATA)
    file = disk.open(MARK, create=True)
    file.write([b"began empty\n"], 0)
    file.sync()
    assert not marked(disk)
    assert node(disk)._replica.non_counting
    assert marked(disk)


async def test_the_mark_stays_until_everything_is_here(running: Any) -> None:
    disk = lost()
    status = node(disk)
    replica: Any = status._replica
    gone_when_counted: list[bool] = []
    replica.core.on_counted = lambda: gone_when_counted.append(not marked(disk))
    running(status)
    await turns()
    assert (replica.non_counting, marked(disk)) == (True, True), "nobody has readmitted it"
    status.readmitted = 7
    await turns()
    assert replica.asked_for == 7
    assert (replica.non_counting, marked(disk)) == (True, True), "entry 7 is not applied"
    replica.core.master_id = None
    replica.applied.set()
    await turns()
    assert (replica.non_counting, marked(disk)) == (True, True), "no master has fed it to the end"
    replica.core.master_id = 2
    replica.role_changed.set()
    await turns()
    assert (replica.non_counting, marked(disk)) == (False, False)
    assert gone_when_counted == [True]


async def test_a_node_that_is_taken_over_while_it_catches_up_does_so_again(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has caught up with was another history."""
    monkeypatch.setattr(status_module, "_LOOK_S", 0)
    disk = lost()
    status = node(disk)
    replica: Any = status._replica
    status.readmitted = 7
    running(status)
    await turns()
    assert replica.asked_for == 7
    status._identity.found("y")
    status.readmitted = None
    replica.applied.set()
    await turns()
    assert (replica.non_counting, marked(disk)) == (True, True)
    status.readmitted = 9
    await turns()
    assert (replica.asked_for, replica.non_counting, marked(disk)) == (9, False, False)


async def test_a_node_that_dies_while_it_catches_up_comes_back_non_counting(running: Any) -> None:
    disk = lost()
    status = node(disk)
    running(status)
    await turns()
    status.readmitted = 7
    await turns()
    status._hard_state.save(3, NodeId(2))  # it has entries and a term by now
    for chance in (0.0, 1.0):
        assert node(disk.restart(survives=chance))._replica.non_counting


def test_a_directory_that_lost_all_but_its_name_is_not_counted() -> None:
    disk = SimFiles()
    assert not node(disk, found="x")._replica.non_counting
    assert not node(disk.copy())._replica.non_counting
    disk.remove(DATA / "hard_state")
    assert node(disk)._replica.non_counting
    assert marked(disk)


def test_a_directory_without_its_log_is_not_counted() -> None:
    disk = SimFiles()
    status = node(disk, found="x")
    again = Asked(node(disk)._config, status._replica, disk, status._identity, status._hard_state)
    assert again.begin(log_lost=True)
    assert marked(disk)


async def test_the_entry_that_readmits_a_node_is_the_one_that_a_master_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to there everything must be here before the node counts."""
    status = node(SimFiles())
    answers: dict[NodeId, Any] = {
        NodeId(2): NotMaster("ask another"),
        NodeId(3): broker_pb2.ReadmitNodeReply(index=7, term=2),
    }

    async def ask(peer: NodeId, address: str) -> Any:
        if isinstance(answers[peer], Exception):
            raise answers[peer]
        return answers[peer]

    monkeypatch.setattr(status, "_peers", lambda: dict.fromkeys(answers, "h:1"))
    monkeypatch.setattr(status, "_ask_readmission", ask)
    assert await MembershipStatus._readmit(status) == 7
    answers[NodeId(3)] = Unavailable("no quorum")
    assert await MembershipStatus._readmit(status) is None


# --- the founding


async def found_with_crashes(crash: int, survives: Random, running: Any) -> str:
    """A node founds its group with two others, and the power fails at an operation of its disk."""
    disk = SimFiles()
    disk.make_directory(DATA)
    disk.sync_directory(DATA.parent)
    disk.crash_at = disk.operations + crash
    counted = False

    async def life(disk: SimFiles) -> bool:
        """Whether the node counts in the end."""
        status = node(disk)
        identity = status._identity
        status.word = ControllersSay(founding="x", founded=False)
        for step in range(6):
            if not status._replica.non_counting:
                break
            prepared = "x" if step > 1 else ""
            others = MemberSays(members=ALL, prepared=prepared)
            status.heard = dict.fromkeys((NodeId(2), NodeId(3)), others)
            await status._take(await status._decide())
            assert status._replica.non_counting or identity.founding == "x"
        return not status._replica.non_counting

    try:
        counted = await life(disk)
    except PowerCut:
        after = disk.restart(survives)
        crashed = node(after.copy())
        if not crashed._replica.non_counting:
            assert crashed._identity.founding == "x"
        # Whatever was lost, it goes on, and counts in the founding for which it was prepared.
        assert await life(after)
        assert not node(after.restart(survives=0.0))._replica.non_counting
        return "crashed"
    assert counted
    return "done"


async def test_a_founding_goes_on_after_a_crash_at_any_operation(running: Any) -> None:
    for crash in range(200):
        ends = {await found_with_crashes(crash, Random(seed), running) for seed in range(4)}
        if ends == {"done"}:
            assert crash > 20
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    "said",
    [
        None,
        ControllersSay(founding="x", founded=False),
        ControllersSay(founding="y", founded=True),
        ControllersSay(founding="x", founded=True),
    ],
)
async def test_a_founding_is_complete_when_the_controllers_have_stored_it(
    said: ControllersSay | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the group could be founded twice."""
    disk = SimFiles()
    status = node(disk)

    async def answer(request: Any) -> ControllersSay | None:
        assert request.complete_id == "x"
        return said

    monkeypatch.setattr(status, "_ask_controllers", answer)
    await status._take(Decision(step=Step.COMPLETE, founding="x"))
    complete = said == ControllersSay(founding="x", founded=True)
    assert status._identity.founding == ("x" if complete else "")
    assert (status._replica.non_counting, marked(disk)) == (not complete, not complete)


async def test_a_lost_disk_is_fed_though_all_others_are_empty() -> None:
    status = node(SimFiles())
    status.word = ControllersSay(founding="x", founded=True)
    status.heard = dict.fromkeys((NodeId(2), NodeId(3)), MemberSays(members=ALL))
    await status._take(await status._decide())
    assert (status._identity.founding, status._replica.non_counting) == ("x", True)
    assert node(status._files)._replica.non_counting  # type: ignore[arg-type]


def test_a_directory_with_a_history_from_before_has_the_first_founding() -> None:
    disk = SimFiles()
    first = node(disk)
    disk.remove(MARK)
    first._hard_state.save(5, NodeId(2))
    again = node(disk)
    assert (again._identity.founding, again._replica.non_counting) == (BEFORE_FOUNDINGS, False)


# --- an operator's word


def test_a_founding_by_order_is_for_the_first_start_only() -> None:
    disk = SimFiles()
    status = node(disk, found="today")
    assert (status._identity.founding, status._replica.non_counting) == ("today", False)
    assert not marked(disk)
    for settings in ({"found": "today"}, {"found": "tomorrow"}):
        with pytest.raises(DataDirectoryError, match="without it"):
            node(disk, **settings)
    assert not node(disk)._replica.non_counting


async def test_a_node_that_waits_is_taken_over_and_counts(running: Any) -> None:
    disk = lost()
    status = node(disk)
    running(status)
    await turns()
    with pytest.raises(InvalidRequest, match="belongs to founding x"):
        status.refound("other", "y", count=True, voters=ALL)
    with pytest.raises(InvalidRequest, match="knows voters"):
        status.refound("x", "y", count=True, voters=frozenset({NodeId(1)}))
    assert status._identity.founding == "x"
    told: list[str] = []
    status.on_refounded = lambda: told.append(status._identity.founding)
    status.refound("x", "y", count=False, voters=ALL)
    assert (status._replica.non_counting, marked(disk), told) == (True, True, ["y"])
    for _ in range(2):  # again is the same
        status.refound("x", "y", count=True, voters=ALL)
        await turns()
        assert (status._replica.non_counting, marked(disk), told) == (False, False, ["y"])
    restarted = node(disk.restart(survives=0.0))
    assert (restarted._identity.founding, restarted._replica.non_counting) == ("y", False)


async def test_a_node_that_was_prepared_is_prepared_no_more_when_it_is_taken_over() -> None:
    """Else its mark would say after a restart that it has founded the group, and counts."""
    disk = SimFiles()
    status = node(disk)
    await status._take(Decision(step=Step.PREPARE, founding="y"))
    assert status._identity.prepared == "y"
    status.refound("", "y", count=False, voters=ALL)
    restarted = node(disk.restart(survives=0.0))
    assert (restarted._identity.founding, restarted._replica.non_counting) == ("y", True)


async def test_a_master_is_not_taken_over() -> None:
    status = node(SimFiles(), found="x")
    status._replica.core.role = Role.MASTER
    with pytest.raises(InvalidRequest, match="nothing is to be restored"):
        status.refound("x", "y", count=False, voters=ALL)
