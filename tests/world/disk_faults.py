"""What goes wrong with disks: they stall, fail, fill up, rot, write to the wrong place or are lost.

How it works. Each fault here is registered under its name, and strikes like those of the nemesis.
Damage (rot, misdirected writes, a lost directory) strikes one node a run, the plan's victim: what
all copies have lost nobody can repair.

Not here: how a disk does it (`disk.py`), when (`plan.py`), all other faults (`nemesis.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from semel.protos.ids import NodeId
from tests.world.registry import fault

if TYPE_CHECKING:
    from tests.world.nemesis import Nemesis
    from tests.world.nodes import BrokerHost

FULL_KINDS = (
    "hard_state",
    "hard_state",
    "segment",
    "spare",
    "checkpoint",
    "kept",
    "CURRENT",
    "IDENTITY",
    "CATCHING_UP",
    "",
)
"""Kinds of files that may find no room; the empty one stands for all files."""


@fault("disk stall")
def _disk_stall(nemesis: Nemesis) -> None:
    nemesis.world.fault("disk stall")
    host = nemesis.master() if nemesis.random.random() < 0.5 else nemesis.one()
    if host is not None:
        host.disk.stalled_until = nemesis.world.now + nemesis.random.choice((0.3, 1.3))


@fault("disk error")
def _disk_error(nemesis: Nemesis) -> None:
    disk = nemesis.one().disk
    disk.fail_kind = nemesis.random.choice(("", "sync"))
    disk.fail_in = nemesis.random.randrange(0, 4)


@fault("failing syncs")
def _failing_syncs(nemesis: Nemesis) -> None:
    """On every node one of the next syncs fails: its bytes stay in the page cache alone."""
    for host in nemesis.hosts:
        host.disk.fail_kind = "sync"
        host.disk.fail_in = nemesis.random.randrange(0, 6)


@fault("strike in a vote")
def _strike_in_a_vote(nemesis: Nemesis) -> None:
    """The present master dies when it saves the next term, or its sync fails then; the power
    stays on."""
    host = nemesis.master()
    if host is None:
        return
    disk = host.disk
    disk.strike_file = "hard_state"
    if nemesis.random.random() < 0.5:
        disk.crash_kind, disk.crash_in = "sync", 0
    else:
        disk.fail_kind, disk.fail_in = "sync", 0


@fault("disk full")
def _disk_full(nemesis: Nemesis) -> None:
    """A disk is full for all files or (as on file systems that write nothing in place) for one
    kind of file."""
    host = nemesis.master() if nemesis.random.random() < 0.7 else nemesis.one()
    if host is None:
        return
    if nemesis.random.random() < 0.5:
        nemesis.world.fault("disk full")
        host.disk.files.room = 0
    else:
        _no_room(nemesis, host, nemesis.random.choice(FULL_KINDS))
    nemesis.world.later(nemesis.random.choice((0.02, 0.1, 0.4, 1.2)), host.disk.has_room)


def _no_room(nemesis: Nemesis, host: BrokerHost, kind: str) -> None:
    nemesis.world.fault(f"no room for {kind or 'anything'}")
    host.disk.files.full = kind, nemesis.random.choice(("write", "write", "sync"))


@fault("no room for votes")
def _no_room_for_votes(nemesis: Nemesis) -> None:
    """The present master has no room for the term in which it is deposed."""
    host = nemesis.master()
    if host is not None:
        _no_room(nemesis, host, "hard_state")
        nemesis.world.later(1.2, host.disk.has_room)


@fault("rot")
def _rot(nemesis: Nemesis) -> None:
    """Flips bits, zeroes a block or copies one elsewhere, in one node's files."""
    host = nemesis.run.hosts[NodeId(nemesis.run.plan.victim)]
    files = host.disk.files
    random = nemesis.random
    files_of: dict[str, list[Path]] = {}
    for path, inode in sorted(files.names_now.items()):
        if inode is not None and not path.name.endswith(".tmp"):
            files_of.setdefault(path.name.partition("-")[0], []).append(path)
    kinds = ("segment", "segment", "segment", "checkpoint", "kept", "hard_state")
    present = [kind for kind in kinds if kind in files_of]
    if not present:
        return
    kind = random.choice(present)
    paths = files_of[kind]
    path = random.choice(paths)
    inode = files.names_now[path]
    assert inode is not None
    data = inode.data
    used = len(bytes(data).rstrip(b"\0"))
    if used < 64:
        return
    at = random.randrange(0, used)
    how = random.choice(("flip", "flip", "zero", "misdirect"))
    if how == "flip":
        new = bytes([data[at] ^ (1 << random.randrange(8))])
    elif how == "zero":
        at -= at % 512
        new = bytes(min(512, len(data) - at))
    else:
        at -= at % 512
        source = random.randrange(0, used) // 512 * 512
        new = bytes(data[source : source + 512])[: len(data) - at]
    if kind == "hard_state" and host.disk.vote_struck:
        return  # one block in each run: the format promises no more
    if bytes(data[at : at + len(new)]) == new:
        return
    host.disk.vote_struck |= kind == "hard_state"
    host.damaged = True
    host.disk.damage(path, at, new)
    nemesis.world.fault(f"rot in {kind}")


@fault("misdirected write")
def _misdirected_write(nemesis: Nemesis) -> None:
    """One of the next writes of the node whose disk may rot succeeds, and lands elsewhere."""
    host = nemesis.run.hosts[NodeId(nemesis.run.plan.victim)]
    host.disk.on_misdirected = lambda: setattr(host, "damaged", True)
    # Not the very next one, which may be the ID of a frame that was misdirected before.
    host.disk.misdirect_in = nemesis.random.randrange(2, 12)
    host.disk.misdirect_file = nemesis.random.choice(
        ("", "segment", "segment", "checkpoint", "kept", "hard_state")
    )
    if host.disk.misdirect_file in ("checkpoint", "kept", "hard_state"):
        host.disk.misdirect_in = nemesis.random.randrange(0, 2)


@fault("misdirected only copy")
def _misdirected_only_copy(nemesis: Nemesis) -> None:
    """The slave whose disk may rot is the only node that gets the next entries and syncs them,
    and the write of one of them lands elsewhere."""
    victim, master = nemesis.run.hosts[NodeId(nemesis.run.plan.victim)], nemesis.master()
    if master is None or victim is master:
        return
    cut_off = [name for name in nemesis.names() if name not in (victim.name, master.name)]
    nemesis.cut({(master.name, name) for name in cut_off})
    master.disk.stalled_until = nemesis.world.now + 0.3
    victim.disk.on_misdirected = lambda: setattr(victim, "damaged", True)
    victim.disk.misdirect_file = "segment"
    victim.disk.misdirect_in = nemesis.random.randrange(0, 4)


@fault("lost directory")
def _lost_directory(nemesis: Nemesis) -> None:
    host = nemesis.run.hosts[NodeId(nemesis.run.plan.victim)]
    if host.wiped:
        return
    nemesis.die(host, "lost directory")
    host.wipe()
    nemesis.run.group_of(host).invariants.forget(host)
    if nemesis.random.random() < 0.5:
        _lose_first_vote(nemesis, host, nemesis.random.randrange(0, 40))


def _lose_first_vote(nemesis: Nemesis, host: BrokerHost, crash_in: int) -> None:
    """The disk loses more than its data: it accepts the next vote and does not keep it. Soon
    after that the process dies, and the next one does not find the vote."""

    def bitten() -> None:
        host.damaged = True
        host.disk.crash_kind, host.disk.crash_in = "", crash_in

    host.disk.on_misdirected = bitten
    host.disk.lose_first_vote()
