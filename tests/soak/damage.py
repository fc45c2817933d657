"""`./run soak damage`: one node's files damaged at random places until the time is over.

Each round makes a new group from its own seed and damages every kind of file several times. A
round that fails names its seed: `--seed` repeats the same places.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.kit.damage import KINDS, Wear


async def _round(seed: int, repeats: int, counts: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="semel-damage-") as directory:
        wear = Wear(Path(directory), seed)
        async with wear.group:
            await wear.fill()
            kinds = KINDS * repeats
            wear.random.shuffle(kinds)
            for damage in kinds:
                try:
                    await wear.hurt(damage)
                except (Exception, TimeoutError) as error:
                    raise AssertionError(f"seed {seed}, after {damage.__name__}") from error
                counts[damage.__name__] += 1


def main(arguments: list[str]) -> int:
    """Exit status 0 when every round was survived; raises at the first that was not."""
    parser = argparse.ArgumentParser(prog="./run soak damage", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (default 1)")
    parser.add_argument("--repeats", type=int, default=3, help="of each kind a round (default 3)")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + options.minutes * 60
    seed = options.seed
    while time.monotonic() < deadline:
        asyncio.run(_round(seed, options.repeats, counts))
        seed += 1
        print(f"seed {seed - 1}: {counts.total()} damages survived", flush=True)
    print(" ".join(f"{name}={count}" for name, count in sorted(counts.items())))
    return 0
