"""Dead letters: what consumers gave up, why, and bringing it back.

How it works. Topics of dead letters are those with the usual end of the name; another one can be
named. Letters are read from the start of the topic, at most `LETTERS_MAX` of them, and the page
says so. One, several or all that match are brought back, each at most once.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from semel.client import LetterFilter
from semel.protos.errors import InvalidRequest
from semel.web.forms import Fields
from semel.web.paging import page_of
from semel.web.visits import Visit, page

LETTERS_MAX: Final = 1_000
ENDING: Final = ".dead-letters"
TOPICS_SHOWN: Final = 100


async def show_topics(visit: Visit) -> Response:
    if name := visit.query.text("topic"):
        return await _show_letters(visit, name)
    found = await visit.client.admin.find_topics(ENDING, limit=TOPICS_SHOWN)
    return visit.show("letters_topics.html", found=found)


async def _show_letters(visit: Visit, topic: str) -> Response:
    query = visit.query
    found = await visit.client.admin.dead_letters(topic, _filter(query), limit=LETTERS_MAX)
    redriven = sum(letter.redriven for letter in found)
    return visit.show(
        "letters.html",
        topic=topic,
        page=page_of(found, query.whole("page", 1, low=1)),
        cut=len(found) >= LETTERS_MAX,
        most=LETTERS_MAX,
        redriven=redriven,
        filled={name: query.text(name) for name in ("group", "reason", "key")},
    )


async def redrive(visit: Visit) -> Response:
    form = visit.form
    topic = form.needed("topic")
    to = form.text("to", "origin")
    if to not in ("origin", "group"):
        raise InvalidRequest("letters go to their origin or to their group")
    which = _filter(form)
    if form.text("which") != "all":
        places = [_place(text) for text in form.all("place")]
        if not places:
            return visit.go("/letters", "nothing was chosen", topic=topic)
        which = LetterFilter(places=tuple(places))
    result = await visit.client.admin.redrive(
        topic,
        which,
        to="origin" if to == "origin" else "group",
    )
    text = f"{result.redriven} of {result.matched} letters came back"
    if result.already:
        text += f", {result.already} had come back before"
    if result.without_origin:
        text += f", {result.without_origin} have no topic to go to"
    return visit.go("/letters", text, topic=topic)


def _filter(fields: Fields) -> LetterFilter:
    key = fields.raw("key")
    return LetterFilter(
        group=fields.text("group"),
        reason=fields.text("reason"),
        key=key.encode() if key else None,
    )


def _place(text: str) -> tuple[int, int]:
    """Raises InvalidRequest."""
    queue, colon, offset = text.partition(":")
    if not (colon and queue.isdecimal() and offset.isdecimal() and len(text) < 40):
        raise InvalidRequest("a letter is named by QUEUE:OFFSET")
    return int(queue), int(offset)


routes = [
    Route("/letters", page(show_topics)),
    Route("/letters/redrive", page(redrive), methods=["POST"]),
]
