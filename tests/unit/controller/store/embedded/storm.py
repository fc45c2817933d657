"""One seeded run: clients on every node, and everything that can go wrong, for a while."""

from __future__ import annotations

from tests.unit.controller.store.embedded.world import World, running

DURATION_S = 25.0


def storm(seed: int, *, size: int = 3, duration_s: float = DURATION_S) -> World:
    """Runs one world to its end. Raises Violation."""
    world = World(seed, size=size)
    with running(world):
        world.start()
        world.at(0.5, lambda: _client(world))
        world.at(3.0, lambda: _nemesis(world))
        world.run(duration_s)
        world.finish()
    return world


def _client(world: World) -> None:
    if not world.hostile:
        return
    rng = world.rng
    world.at(rng.uniform(0.005, 0.06), lambda: _client(world))
    number = rng.choice(list(world.nodes))
    match rng.choice(("write", "count", "read")):
        case "write":
            world.write(number)
        case "count":
            world.write(number, counter=True)
        case _:
            world.read(number)


def _nemesis(world: World) -> None:
    if not world.hostile:
        return
    rng = world.rng
    world.at(rng.uniform(0.1, 1.5), lambda: _nemesis(world))
    number = rng.choice(list(world.nodes))
    disk = world.nodes[number].disk
    match rng.choice(
        (
            "crash",
            "crash",
            "kill",
            "crash at",
            "crash at",
            "fail",
            "fail",
            "blackout",
            "resign",
            "pause",
            "isolate",
            "one way",
            "heal",
            "heal",
            "disk",
        )
    ):
        case "crash":
            world.crash(number)
        case "kill":
            world.kill(number)
        case "blackout":
            world.counts["blackouts"] += 1
            for one in world.nodes:
                world.crash(one)
        case "resign":
            world.resign(number)
        case "crash at":
            disk.crash_at = disk.operations + rng.randint(1, 40)
        case "fail":
            disk.fail_at = disk.operations + rng.randint(1, 40)
        case "pause":
            world.counts["pauses"] += 1
            world.pause(number, rng.uniform(0.1, 4.0))
        case "isolate":
            world.counts["cuts"] += 1
            world.isolate(number)
        case "one way":
            other = rng.choice([one for one in world.nodes if one != number])
            world.cut.add((number, other))
        case "heal":
            world.cut.clear()
        case _:
            # One lost disk at a time, and never beside another failure that a quorum needs.
            if len(world.voters()) == len(world.nodes):
                world.counts["lost disks"] += 1
                world.lose_disk(number)
