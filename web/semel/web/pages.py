"""Templates, and what they may call.

Invariants
1. Everything that is put into a page is escaped; no template marks anything as safe.
2. A name that a template uses and nobody gives is an error.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import jinja2

from semel.console import render, units
from semel.web import decoding

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"


class Screen(NamedTuple):
    """One entry of the menu."""

    path: str
    name: str
    letter: str
    """Behind `g` it goes there."""


SCREENS: Final = (
    Screen("/", "Cluster", "c"),
    Screen("/topics", "Topics", "t"),
    Screen("/messages", "Messages", "m"),
    Screen("/groups", "Groups", "g"),
    Screen("/letters", "Dead letters", "l"),
    Screen("/delays", "Delays", "d"),
    Screen("/transactions", "Transactions", "x"),
    Screen("/producers", "Producers", "p"),
    Screen("/verify", "Verify", "v"),
    Screen("/audit", "Audit", "a"),
)


def section(path: str) -> str:
    """The path of the screen to which a page belongs; empty for a page of none."""
    if path == "/tail":
        return "/messages"
    for screen in SCREENS[1:]:
        if path.startswith(screen.path.removesuffix("s")):
            return screen.path
    return "/" if path == "/" else ""


def link(path: str, **fields: object) -> str:
    """A path with a query of those fields that are not empty."""
    given = {name: value for name, value in fields.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


@lru_cache
def asset(name: str) -> str:
    """The path of a file that browsers may keep: it changes with the file."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "link": link,
        "section": section,
        "asset": asset,
        "screens": SCREENS,
        "share": _share,
    }
    made.filters |= {
        "number": render.number,
        "size": render.size,
        "duration": units.duration,
        "brief": render.brief,
        "when": render.when,
        "iso": render.iso,
        "plural": render.plural,
        "member": render.member,
        "lock_age": render.lock_age,
        "uncommitted": render.uncommitted,
        "line": decoding.line,
        "harmless": decoding.harmless,
        "id_text": decoding.id_text,
    }
    return made


_TEMPLATES: Final = _environment()


def rendered(template: str, **context: Any) -> str:
    """Returns the HTML of a template."""
    return _TEMPLATES.get_template(template).render(context)
