"""Three controllers, of which the active one suffers faults. Topics are made and deleted all the
time, so that it has something to do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.world.ensemble import STORE
from tests.world.nemesis import Nemesis
from tests.world.plan import Plan, Step, with_steps
from tests.world.registry import Part, add_part, fault


def with_controllers(plan: Plan) -> Plan:
    random = Random(plan.seed * 2 + 9)
    kinds = (
        "brief topic",
        "brief topic",
        "brief topic",
        "controller crash",
        "controller crash in a write",
        "controller cut off",
        "controller stop",
        "controller unheard",
        "heal",
    )
    steps = [
        Step(
            round(random.uniform(0, plan.duration_s), 6),
            random.choice(kinds),
            random.getrandbits(32),
        )
        for _ in range(random.choice((4, 8, 12)))
    ]
    return replace(
        with_steps(plan, steps),
        duration_s=plan.duration_s + 1.0,
        controllers=3,
        lease_s=random.choice((0.3, 1.0, 3.0)),
    )


@fault("controller stop")
def stop(nemesis: Nemesis) -> None:
    """The controller stops for longer than a session: another one is active when it wakes."""
    world = nemesis.world
    process = world.hosts.get(nemesis.controller().name)
    if process is not None:
        world.fault("controller stop")
        world.loop.stop_process(process, world.now + nemesis.random.choice((0.3, 1.0, 1.6)))


@fault("controller cut off")
def cut_off(nemesis: Nemesis) -> None:
    """The controller reaches brokers and clients, but not the store, or gets no answers from it."""
    name = nemesis.controller().name
    nemesis.world.count("controller cut off from the store")
    there, back = (name, STORE), (STORE, name)
    nemesis.cut(nemesis.random.choice(({there}, {back}, {there, back})))


@fault("controller unheard")
def unheard(nemesis: Nemesis) -> None:
    """The controller's calls to brokers wait on their way while it is asked for a topic; then it
    loses the store, too, and another one is active when the calls arrive."""
    name = nemesis.controller().name
    nemesis.world.count("controller unheard")
    nemesis.cut({(name, other) for other in nemesis.names()})
    nemesis.make_brief_topic()

    def lose_the_store() -> None:
        if not nemesis.run.healing:
            nemesis.cut({(name, STORE)})

    nemesis.world.later(nemesis.random.uniform(0.05, 0.3), lose_the_store)
    nemesis.world.later(nemesis.random.uniform(1.0, 1.6), nemesis.world.network.heal)


add_part(
    Part(
        name="controllers",
        help="three controllers, and their store is a fourth",
        add=with_controllers,
    )
)
