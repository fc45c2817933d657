"""The registry of what worlds can have: programs, faults, and parts of a plan.

How it works. A *program* is a kind of client, named in `Plan.clients` ("loader 1"); a *fault* is
what a step of a plan does ("move queue"). A *part* is added to every plan when it is asked for
(`./run soak sim --moves`): steps, programs and settings. Parts go in any combination, whatever
the order in which they are named. Each first *adds* what it brings; when all have added theirs,
each *leaves out* what cannot be beside it.

The modules of `tests/world/parts/` are imported when the first of their things is looked up. So a
new one is a module there, and nothing else has to name it.

Invariants
1. A part draws from a random source of its own (`random_of`), so that a new one changes no world
   without it.
2. Programs of different kinds have different hosts.

Not here: a plan (`plan.py`), carrying it out (`run.py`, `nemesis.py`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from tests.world.clients import ClientHost
    from tests.world.nemesis import Nemesis
    from tests.world.plan import Plan
    from tests.world.run import Run

MakeProgram: TypeAlias = "Callable[[Run, str], ClientHost]"
"""Makes a program of the run on a host of this name; the run sets what all programs share."""
Strike: TypeAlias = "Callable[[Nemesis], None]"


def _as_it_is(plan: Plan) -> Plan:
    return plan


def _nothing(_: Run) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that is added to plans on request."""

    name: str
    """Name of the part, and of its option, where underscores are dashes."""
    help: str
    """One line for `--help`."""
    add: Callable[[Plan], Plan]
    """Adds steps, programs and settings to a plan."""
    leave_out: Callable[[Plan], Plan] = _as_it_is
    """Leaves out of a plan what cannot be beside this part."""
    exchange: Callable[[Run], AbstractContextManager[object]] = _nothing
    """Replaces things while such a world runs: constants of the product, observed methods."""


_programs: dict[str, tuple[str, MakeProgram]] = {}
_faults: dict[str, Strike] = {}
_parts: dict[str, Part] = {}


def program(kind: str, *, host: str) -> Callable[[MakeProgram], MakeProgram]:
    """Registers a kind of client; `host` begins the names of its machines."""

    def register(make: MakeProgram) -> MakeProgram:
        taken = {other for other, (name, _) in _programs.items() if name == host}
        assert not taken, f"hosts of {taken} are named {host!r}, too"
        _programs[kind] = host, make
        return make

    return register


def fault(kind: str) -> Callable[[Strike], Strike]:
    """Registers what a step of this kind does."""

    def register(strike: Strike) -> Strike:
        assert kind not in _faults, f"there are two faults {kind!r}"
        _faults[kind] = strike
        return strike

    return register


def random_of(plan: Plan, part: str) -> Random:
    """The random source from which a part draws what it adds to the plan."""
    return Random(f"{plan.seed} {part}")


def add_part(part: Part) -> None:
    """Registers a part."""
    assert part.name not in _parts, f"there are two parts {part.name!r}"
    _parts[part.name] = part


def load() -> None:
    """Imports all modules of parts, and those of the programs and faults that any seed may have."""
    # They import this module.
    from tests.world import clients, disk_faults, parts, protocol_clients  # noqa: F401

    for module in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}."):
        importlib.import_module(module.name)


def make_program(run: Run, name: str) -> ClientHost:
    """Makes the program that a plan names by its kind and a number."""
    return _programs[name.partition(" ")[0]][1](run, host_of(name))


def host_of(name: str) -> str:
    """The machine of the program that a plan names."""
    load()
    kind, _, number = name.partition(" ")
    return _programs[kind][0] + number


def find_fault(kind: str) -> Strike | None:
    """The function that is registered; None for a fault of the nemesis itself."""
    load()
    return _faults.get(kind)


def all_parts() -> dict[str, Part]:
    """All parts by name, in the order in which they are added to a plan."""
    load()
    return dict(sorted(_parts.items()))


def with_parts(plan: Plan, names: Iterable[str]) -> Plan:
    """The plan with these parts on top."""
    wanted = set(names)
    known = all_parts()
    assert wanted <= known.keys(), f"no such part: {wanted - known.keys()}"
    chosen = [part for name, part in known.items() if name in wanted]
    for part in chosen:
        plan = part.add(plan)
    for part in chosen:
        plan = part.leave_out(plan)
    return replace(plan, parts=tuple(part.name for part in chosen))
