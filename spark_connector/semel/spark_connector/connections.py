"""One SDK client for each cluster and process, kept between tasks.

How it works. Spark keeps its Python workers and gives them one task after another, so a client that
stays connected saves every later task the time to connect, and to log in. `shared_client` keeps one
client for each cluster and identity, and forgets it after `discard`, which a task calls after any
failure: the next task starts with fresh connections and fresh routes. A forked child never uses its
parent's clients.

Not here: the requests to the client (`view.py`, `tasks.py`).
"""

from __future__ import annotations

import gc
import os
import threading

from pyspark import TaskContext

from semel.client import Client, connect
from semel.spark_connector.client_options import ClientOptions

_lock = threading.Lock()
_clients: dict[tuple[int, ClientOptions], Client] = {}


def shared_client(options: ClientOptions, timeout_ms: int) -> Client:
    """A connected client. Raises Unavailable when no controller answers within `timeout_ms`, and
    Unauthenticated, InvalidRequest when it cannot prove who it is."""
    place = (os.getpid(), options)
    with _lock:
        client = _clients.get(place)
        if client is None:
            if TaskContext.get() is not None:
                # A worker's imports stay for its life. If every collection looked at them, a
                # read would take three percent longer.
                gc.collect()
                gc.freeze()
            file = options.client_file(os.environ)
            client = connect(
                file.bootstrap,
                security=file.security,
                login=file.login,
                connect_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
            )
            _clients[place] = client
        return client


def discard(options: ClientOptions) -> None:
    """Close and forget the client, if there is one."""
    with _lock:
        client = _clients.pop((os.getpid(), options), None)
    if client is not None:
        client.close()


def discard_all() -> None:
    """Close and forget every client of this process.

    Safe in a signal handler: it does not take the lock, which the interrupted code may hold.
    """
    own = [place for place in list(_clients) if place[0] == os.getpid()]
    for place in own:
        client = _clients.pop(place, None)
        if client is not None:
            client.close()
