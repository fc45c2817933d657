"""Verifying a topic: every node recomputes it from its own log; the proof is shown.

How it works. A verification goes on behind the page, which asks for its progress once a second, and
may be left and opened again. All that see the cluster with the same rights share the verification
of a topic, and at most `AT_ONCE` go on together: each reads whole logs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from semel.client import AsyncClient, VerifyProgress
from semel.client.admin.descriptions import VerifyResult
from semel.protos.errors import SemelError, Throttled
from semel.web.paging import page_of
from semel.web.visits import Visit, page

AT_ONCE: Final = 2
KEPT: Final = 20
"""Results that are remembered."""
TOPICS_SHOWN: Final = 100


@dataclass(slots=True)
class Run:
    """One verification."""

    topic: str
    begun_s: float = field(default_factory=time.time)
    progress: VerifyProgress | None = None
    result: VerifyResult | None = None
    reason: str = ""
    """Why there is no result."""

    @property
    def goes_on(self) -> bool:
        return self.result is None and not self.reason

    async def carry_out(self, client: AsyncClient) -> None:
        """Runs it; what goes wrong is its result."""
        try:
            self.result = await client.admin.verify(self.topic, on_progress=self._note)
        except SemelError as error:
            self.reason = error.message or type(error).__name__
        finally:
            if self.goes_on:
                self.reason = "it was interrupted"

    def _note(self, progress: VerifyProgress) -> None:
        self.progress = progress


async def show(visit: Visit) -> Response:
    name = visit.query.text("topic")
    if not name:
        search = visit.query.text("search")
        found = await visit.client.admin.find_topics(search, limit=TOPICS_SHOWN)
        return visit.show("verify_topics.html", found=found, search=search)
    return visit.show("verify.html", topic=name, **_state(visit, name))


async def show_progress(visit: Visit) -> Response:
    name = visit.query.needed("topic")
    return visit.show("_verify.html", topic=name, **_state(visit, name))


async def start(visit: Visit) -> Response:
    name = visit.form.needed("topic")
    runs = _runs(visit)
    known = runs.get(name)
    if known is None or not known.goes_on:
        if sum(run.goes_on for run in runs.values()) >= AT_ONCE:
            raise Throttled(f"{AT_ONCE} topics are verified now: wait for one of them")
        await visit.client.admin.find_topics(limit=1)  # the cluster answers
        runs.pop(name, None)
        runs[name] = run = Run(name)
        visit.site.spawn(run.carry_out(visit.client))
        for old in [each for each, one in runs.items() if not one.goes_on][:-KEPT]:
            del runs[old]
    return visit.go("/verify", topic=name)


def _runs(visit: Visit) -> dict[str, Run]:
    runs: dict[str, Run] = visit.site.memory_of(visit.session).setdefault("verify", {})
    return runs


def _state(visit: Visit, topic: str) -> dict[str, Any]:
    run = _runs(visit).get(topic)
    result = None if run is None else run.result
    number = visit.query.whole("page", 1, low=1)
    return {
        "run": run,
        "result": result,
        "page": None if result is None else page_of(result.queues, number),
    }


routes = [
    Route("/verify", page(show), methods=["GET"]),
    Route("/verify/progress", page(show_progress)),
    Route("/verify", page(start), methods=["POST"]),
]
