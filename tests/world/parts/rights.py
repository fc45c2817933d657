"""A secured cluster: every program has an identity, and rules say what each may do.

How it works. Brokers and controllers check each call and each message of a stream by production
code (`semel.protos.security`). What TLS would prove is given by the simulated network (`rpc.py`): a
channel has the identity of its program's certificate, and a server checks nothing but that. The
usual programs have the rights that they need, those of parts have rights on all topics, groups,
producers and transactions. Rules change while programs run: of people who do nothing here, and of
programs, which lose their rights for a while. An *intruder*, a *forger* and a *guest* try what they
may not (`../strangers.py`).

Beside upgrades there are no rules: older programs do not know them, and there is no intruder.

What must hold: a program whose rights are taken away for a while neither loses nor doubles
anything; what nobody was allowed to do has not happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from semel.controller.config import ControllerConfig
from semel.protos.security.credentials import Security
from semel.protos.security.identity import ADMIN, CLIENT, Identity
from tests.world import ensemble, nodes, strangers
from tests.world import run as run_module
from tests.world.clients import GROUP, TOPIC, ClientHost
from tests.world.identities import exchanged, security
from tests.world.nemesis import Nemesis
from tests.world.nodes import CLUSTER, BrokerHost
from tests.world.plan import Plan, Step, with_clients, with_steps, without_clients
from tests.world.registry import Part, add_part, fault, host_of, random_of
from tests.world.run import Run

SHARE: Final = 1 / 3
"""Share of the seeds whose worlds are secured."""
_WHERE: Final = Path("/sim/tls")

_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "loader": (f"write topic:{TOPIC}", f"read topic:{TOPIC}", "own-name producer:{host}"),
    "sender": (f"write topic:{TOPIC}",),
    "postponer": (f"write topic:{TOPIC}",),
    "hasty": (f"write topic:{TOPIC}",),
    "doubter": (f"write topic:{TOPIC}", "own-name producer:{host}"),
    "member": (f"read topic:{TOPIC}", f"commit consumer-group:{GROUP}"),
    "follower": (f"read topic:{TOPIC}",),
    "watcher": (f"describe topic:{TOPIC}",),
    "guest": strangers.OF_A_GUEST,
    "intruder": (),
    "newcomer": (f"write topic:{TOPIC}", "own-name producer:{host}-*"),
    "forger": (f"write topic:{TOPIC}",),
}
"""What the usual programs need."""
_ANYTHING: Final = tuple(
    f"* {kind}:*" for kind in ("topic", "consumer-group", "producer", "transaction")
)
"""What programs of parts have."""
_OPERATORS: Final = ("archivist", "janitor", "outsider", "upgrader")
"""Kinds of programs that operate the cluster, too."""


def rules_of(kind: str, host: str) -> tuple[str, ...]:
    """The rules that a program of this kind needs on this host."""
    operator = ("* cluster",) if kind in _OPERATORS else ()
    rights = _NEEDED.get(kind, (*_ANYTHING, *operator))
    return tuple(f"allow user:{host} {right.format(host=host)}" for right in rights)


def is_secured(seed: int) -> bool:
    """Whether the world of this seed is secured, when nothing else says so."""
    return Random(f"{seed} is secured").random() < SHARE


# --- the plan


def with_rights(plan: Plan) -> Plan:
    random = random_of(plan, "rights")
    kinds = ["rights taken"] * random.choice((1, 3, 5)) + ["rights of others"] * 2
    steps = [
        Step(round(random.uniform(0, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in kinds
    ]
    forgers = ("forger 1", "newcomer 1") if random.random() < 0.5 else ()
    return with_clients(with_steps(plan, steps), ("intruder 1", "guest 1", *forgers))


def _without_upgrades(plan: Plan) -> Plan:
    if not any(name.startswith("upgrader") for name in plan.clients):
        return plan
    kept = tuple(step for step in plan.steps if step.kind not in ("rights taken", _OTHERS))
    return replace(without_clients(plan, "intruder", "guest", "forger", "newcomer"), steps=kept)


_OTHERS: Final = "rights of others"


@fault(_OTHERS)
def _of_others(nemesis: Nemesis) -> None:
    """Somebody who does nothing here gets a right, and loses it."""
    rule = f"allow user:nobody-{nemesis.random.randrange(3)} write topic:{TOPIC}"

    async def change(client: Any) -> None:
        await client.admin.change_access_rules(add=[rule])
        await client.admin.change_access_rules(remove=[rule])

    nemesis.run.operator.ask("rights of others", change)


@fault("rights taken")
def _taken(nemesis: Nemesis) -> None:
    """A program loses its rights for a while, or what it does is forbidden by a deny rule."""
    random = nemesis.random
    usual = _NEEDED.keys() - {"guest", "intruder", "forger"}
    losers = [name for name in nemesis.run.plan.clients if name.split()[0] in usual]
    if not losers:
        return
    rules = rules_of(*_named(random.choice(losers)))
    denies = random.random() < 0.3
    seconds = random.uniform(0.05, 0.8)

    async def change(client: Any) -> None:
        rights = client.admin
        if denies:
            denied = [rule.replace("allow", "deny", 1) for rule in rules]
            await rights.change_access_rules(add=denied)
        else:
            await rights.change_access_rules(remove=rules)
        await asyncio.sleep(seconds)
        if denies:
            await rights.change_access_rules(remove=denied)
        else:
            await rights.change_access_rules(add=rules)

    nemesis.run.operator.ask("rights taken and given back", change)


@fault("hidden while batches wait")
def _hidden(nemesis: Nemesis) -> None:
    """Disks stall, so what programs have sent waits to be stored; meanwhile some of them lose all
    rights, so they see no topic, and get them back."""
    run, random = nemesis.run, nemesis.random
    if not run.rules:
        return
    kinds = ("guest", "intruder", "forger", *_OPERATORS)
    usual = [name for name in run.plan.clients if name.split()[0] not in kinds]
    losers = [name for name in usual if name.startswith("sender") or random.random() < 0.5]
    rules = [rule for name in losers for rule in rules_of(*_named(name))]
    stalled_s, seconds = random.uniform(0.2, 0.4), random.uniform(0.0, 0.08)

    async def change(client: Any) -> None:
        for host in nemesis.hosts:
            host.disk.stalled_until = nemesis.world.now + stalled_s
        await client.admin.change_access_rules(remove=rules)
        await asyncio.sleep(seconds)
        await client.admin.change_access_rules(add=rules)

    run.operator.ask("topic hidden and shown", change)


def _named(name: str) -> tuple[str, str]:
    """Kind and host of a program that the plan names."""
    return name.split()[0], host_of(name)


# --- the world


def of_program(client: ClientHost) -> Security:
    """The certificate of a program: operators and who makes the topic are administrators."""
    return security(
        Identity(ADMIN if client.name in ("a1", "o1", "o2") else CLIENT, client.name, CLUSTER)
    )


@contextmanager
def secured(run: Run) -> Iterator[None]:
    """A world with an intruder has identities."""
    if not any(name.startswith("intruder") for name in run.plan.clients):
        yield
        return
    with with_identities(run):
        run.world.seen["secured world"] += 1
        yield


@contextmanager
def with_identities(run: Run) -> Iterator[None]:
    """The world's nodes and programs have identities, and its nodes check rights."""
    run.security_of = of_program
    run.rules = tuple(rule for name in run.plan.clients for rule in rules_of(*_named(name)))
    settings: dict[str, Any] = {"tls_dir": _WHERE, "authorization": True}
    controller = partial(ControllerConfig, **settings)

    def broker(world: Any, number: int, cluster: Any, config: Any) -> BrokerHost:
        return BrokerHost(world, number, cluster, replace(config, **settings))

    with (
        exchanged(),
        patch.object(run_module, "BrokerHost", broker),
        patch.object(nodes, "ControllerConfig", controller),
        patch.object(ensemble, "ControllerConfig", controller),
    ):
        yield


add_part(
    Part(
        name="rights",
        help="TLS' identities, and rules of who may do what; intruders try what they may not",
        add=with_rights,
        leave_out=_without_upgrades,
        exchange=secured,
    )
)
