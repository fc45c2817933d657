"""What the site of the documentation has beside the pages in docs/: hooks of mkdocs (mkdocs.yml).

How it works. Pages that lie elsewhere in the repository (README, CHANGELOG and others) get a place
in the site, and a page of the API is made from the SDK's exports. Links are written for people who
read the repository; here each becomes what it is in the site: another page, or plain text if it
leads to a source file, for the site does not know where the repository is published.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

import semel.client
from semel.protos import errors

ROOT: Final = Path(__file__).resolve().parents[1]
ELSEWHERE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
}
"""Pages outside docs/, by their path in the repository, and their names in the site."""
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

API_SECTIONS: Final = (
    ("Connecting", ("connect", "connect_async", "Client", "AsyncClient", "Login", "Security")),
    ("Producing", ("Producer", "AsyncProducer")),
    ("Reading", ("Reader", "Consumer", "AsyncReader", "AsyncConsumer", "Table", "AsyncTable")),
    ("Administration", ("Admin", "AsyncAdmin")),
)
"""Headings of the API's page and what stands below each; all other exports follow, by name."""


def api_page() -> str:
    """The page of the API, in the language of mkdocstrings."""
    lines = [
        "# API",
        "",
        "Everything that `semel.client` exports, from its docstrings. [client.md](client.md) is the"
        " guide, [errors.md](errors.md) lists the errors.",
    ]
    named = {name for _, names in API_SECTIONS for name in names}
    kinds = [name for name in semel.client.__all__ if name not in named and _is_own(name)]
    for title, names in (*API_SECTIONS, ("Types", kinds)):
        lines += ["", f"## {title}"]
        lines += [line for name in names for line in ("", f"::: {_path(name)}")]
    return "\n".join(lines) + "\n"


def _is_own(name: str) -> bool:
    exported = getattr(semel.client, name)
    return hasattr(exported, "__module__") and exported.__module__ != errors.__name__


def _path(name: str) -> str:
    exported = getattr(semel.client, name)
    return f"{exported.__module__}.{exported.__qualname__}"


def site_path(path: str) -> str | None:
    """The place in the site of a path in the repository; None for what is not in it."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        if (ROOT / path).is_dir():
            return posixpath.join(inside, "README.md")
        return inside if (ROOT / path).is_file() and not inside.endswith(".json") else None
    return site_path(posixpath.join(path, "README.md")) if (ROOT / path).is_dir() else None


def site_links(text: str, source: str) -> str:
    """The text of the page `source`, a path in the repository, with links as they are in the
    site."""
    begin = posixpath.dirname(site_path(source) or "")

    def replace(match: re.Match[str]) -> str:
        image, shown, link = match.groups()
        target, hash_sign, anchor = link.partition("#")
        if not target or "://" in target:
            return match.group()
        found = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))
        if found is None:
            return shown
        return f"{image}[{shown}]({posixpath.relpath(found, begin or '.')}{hash_sign}{anchor})"

    return LINK.sub(replace, text)


def on_config(config: Any) -> Any:
    """mkdocs has read its settings: folders in the navigation become lists of their pages."""
    config["nav"] = [_expanded(entry) for entry in config["nav"]]
    return config


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _expanded(inside) for title, inside in entry.items()}
    if isinstance(entry, list):
        return [_expanded(one) for one in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(path.name for path in (ROOT / "docs" / entry).glob("*.md"))
    return [f"{entry}{name}" for name in sorted(pages, key=lambda name: name != "README.md")]


def on_files(files: Any, *, config: Any) -> Any:
    """mkdocs asks which pages there are beside those in docs/."""
    from mkdocs.structure.files import File

    for source, name in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=site_links(text, source)))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """mkdocs gives each page before it is rendered."""
    path = page.file.src_uri
    if path in ELSEWHERE.values() or path == "api.md":
        return markdown
    return site_links(markdown, f"docs/{path}")
