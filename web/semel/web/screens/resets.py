"""Resetting a group's offsets: a plan that is shown first, and then carried out as it was shown.

How it works. The plan that a visitor has seen is kept for it under a number. Carrying out means
that very plan: what has changed since then changes nothing of it.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from semel.client import OffsetReset, Shift
from semel.protos.errors import InvalidRequest
from semel.web.forms import Fields
from semel.web.paging import page_of
from semel.web.visits import Visit, page

PLANS_MAX: Final = 10
"""Plans that are kept for one visitor."""
QUEUES_SHOWN: Final = 100


async def show_form(visit: Visit) -> Response:
    name = visit.query.needed("name")
    group = await visit.client.admin.describe_group(name)
    topics = sorted({queue.topic for queue in group.queues})
    return visit.show("reset.html", name=name, topics=topics, active=len(group.members))


async def preview(visit: Visit) -> Response:
    form = visit.form
    name = form.needed("name")
    plan, active = await visit.client.admin.plan_offset_resets(
        name, form.all("topic"), to=_place(form)
    )
    plans: dict[str, tuple[str, list[OffsetReset]]]
    plans = visit.session.memory.setdefault("plans", {})
    number = secrets.token_hex(8)
    plans[number] = name, plan
    while len(plans) > PLANS_MAX:
        plans.pop(next(iter(plans)))
    return visit.show(
        "reset_plan.html",
        name=name,
        plan=page_of(plan, 1, size=QUEUES_SHOWN),
        moved=sum(reset.new_offset != reset.committed_offset for reset in plan),
        again=sum(max(0, reset.committed_offset - reset.new_offset) for reset in plan),
        skipped=sum(
            max(0, reset.new_offset - reset.committed_offset)
            for reset in plan
            if reset.committed_offset >= 0
        ),
        active=active,
        number=number,
    )


async def carry_out(visit: Visit) -> Response:
    plans: dict[str, Any] = visit.session.memory.get("plans", {})
    kept = plans.pop(visit.form.needed("plan"), None)
    if kept is None:
        raise InvalidRequest("this plan is not known any more: make it again")
    name, plan = kept
    await visit.client.admin.carry_out_resets(name, plan)
    return visit.go("/group", f"{name} reads on as planned in {len(plan)} queues", name=name)


def _place(form: Fields) -> Any:
    """Raises InvalidRequest."""
    match form.text("to"):
        case "earliest" | "latest" as word:
            return word
        case "offset":
            return form.whole("offset")
        case "shift":
            return Shift(messages=form.whole("shift", low=-(1 << 62)))
        case "time":
            time = form.time("time")
            if time is None:
                raise InvalidRequest("time: write one such as 2026-01-31T12:00:00Z")
            return time
    raise InvalidRequest("say where the group is to read on")


routes = [
    Route("/group/reset", page(show_form), methods=["GET"]),
    Route("/group/reset", page(preview), methods=["POST"]),
    Route("/group/reset/carry-out", page(carry_out), methods=["POST"]),
]
