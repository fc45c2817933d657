"""The synchronous `Admin`: all administrative calls, put together from their parts.

Not here: the calls, by subject (`api/sync_topic_admin.py`, `api/sync_access_admin.py`,
`api/sync_message_admin.py`, `api/sync_cluster_admin.py`).

Generated from `api/aio_admin.py` by `tools/unasync.py`: change that module.
"""

from __future__ import annotations

from semel.client.api.sync_access_admin import AccessAdmin
from semel.client.api.sync_cluster_admin import ClusterAdmin
from semel.client.api.sync_message_admin import MessageAdmin
from semel.client.api.sync_topic_admin import TopicAdmin
from semel.client.session import Session


class Admin(TopicAdmin, AccessAdmin, MessageAdmin, ClusterAdmin):
    """Administrative calls; each blocks until it is done."""

    def __init__(self, session: Session) -> None:
        self._session = session
