"""The topic limits what may be due in one second: messages are refused while faults strike.

A refused message is certainly not stored, and its producer goes on. Beside upgrades there is no
limit: older programs do not know it.
"""

from __future__ import annotations

from tests.world.plan import Plan, with_clients
from tests.world.registry import Part, add_part


def with_limits(plan: Plan) -> Plan:
    return with_clients(plan, ("postponer 3", "postponer 4"))


add_part(Part(name="limits", help="the topic limits what is due in one second", add=with_limits))
