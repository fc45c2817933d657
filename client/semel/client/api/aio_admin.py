"""The asyncio `AsyncAdmin`: all administrative calls, put together from their parts.

The synchronous half, `api/sync_admin.py`, is generated from this module by `tools/unasync.py`,
which explains the marks in the comments.

Not here: the calls, by subject (`api/aio_topic_admin.py`, `api/aio_access_admin.py`,
`api/aio_message_admin.py`, `api/aio_cluster_admin.py`).
"""

from __future__ import annotations

from semel.client.api.aio_access_admin import AsyncAccessAdmin
from semel.client.api.aio_cluster_admin import AsyncClusterAdmin
from semel.client.api.aio_message_admin import AsyncMessageAdmin
from semel.client.api.aio_topic_admin import AsyncTopicAdmin
from semel.client.session import Session


class AsyncAdmin(AsyncTopicAdmin, AsyncAccessAdmin, AsyncMessageAdmin, AsyncClusterAdmin):
    """Administrative calls; each returns once it is done."""

    def __init__(self, session: Session) -> None:
        self._session = session
