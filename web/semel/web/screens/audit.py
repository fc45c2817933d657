"""The audit logs of all nodes, as one: who did what, and what was refused.

How it works. Each page asks the nodes for their next lines, the newest first; where each of them
goes on is part of the address of the next page.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from semel.protos.errors import InvalidRequest
from semel.web.visits import Visit, page

LINES_SHOWN: Final = 50
RESULTS: Final = {
    "denied": "denied",
    "unauthenticated": "caller not known",
    "refused": "login refused",
    "logged in": "logged in",
    "done": "done",
    "changed": "rules, users, quotas changed",
}
"""What can be asked for, as people read it."""
PLACE_CHARACTERS_MAX: Final = 8_000


async def show(visit: Visit) -> Response:
    search, result = visit.query.text("search"), visit.query.text("result")
    found = await visit.client.admin.read_audit(
        positions_of(visit.query.text("place")), search=search, result=result, limit=LINES_SHOWN
    )
    return visit.show(
        "_audit_rows.html" if visit.is_part else "audit.html",
        found=found,
        search=search,
        result=result,
        results=RESULTS,
        place="" if found.end else place_of(found.positions),
        newest=not visit.query.text("place"),
    )


def place_of(positions: dict[str, str]) -> str:
    """Where each node goes on, as part of an address."""
    return base64.urlsafe_b64encode(json.dumps(positions).encode()).decode()


def positions_of(place: str) -> dict[str, str]:
    """Returns what `place_of` was given; nothing for an empty place. Raises InvalidRequest."""
    if not place:
        return {}
    try:
        if len(place) > PLACE_CHARACTERS_MAX:
            raise ValueError
        found = json.loads(base64.b64decode(place.encode(), altchars=b"-_", validate=True))
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise ValueError
    except (ValueError, binascii.Error, RecursionError):
        raise InvalidRequest("this address is no page of the audit logs") from None
    return found


routes = [Route("/audit", page(show))]
