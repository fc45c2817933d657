"""The web console beside `semel up --web`.

How it works. It is `semel web` on a port of this machine. In a cluster with TLS it has the client
file of those who log in, so that visitors have their own rights, or without ports for logins that
of the administrator, and then prints a URL with a key.

Not here: the console itself (`semel.web`), the process (`up_beside.py`).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from semel.console import cluster_file
from semel.console.cluster_file import CLIENT_FILE, ClusterPlan
from semel.console.up_beside import Beside
from semel.protos.errors import InvalidRequest
from semel.protos.logs import TEXT
from semel.protos.security.identity import ADMIN

NEEDED: Final = ("starlette", "jinja2", "uvicorn")


def check() -> None:
    """Raises InvalidRequest if what the web console needs is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"the web console needs {', '.join(missing)}: pip install 'semel[web]'"
        )


def web_beside(plan: ClusterPlan, directory: Path, port: int, log_format: str = TEXT) -> Beside:
    """Returns the web console of a cluster, to be entered; its place is its URL."""
    environment = {}
    if plan.secure:
        who = "login" if plan.logins else ADMIN
        path = directory / cluster_file.SECURITY / who / CLIENT_FILE
        environment["SEMEL_CLIENT_CONFIG"] = str(path)
    return Beside(
        "web console",
        directory / "logs" / "web.log",
        (
            *("web", "--listen", f"127.0.0.1:{port}", "--bootstrap", plan.bootstrap),
            *("--log-format", log_format),
        ),
        "url",
        environment,
    )
