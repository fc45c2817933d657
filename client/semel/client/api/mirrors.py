"""Mirrors of topics in another cluster, for programs that block.

    with connect("10.0.0.1:7070") as source, connect("10.9.0.1:7070") as target:
        run_mirror(source, target, ["orders.*"])         # until it is interrupted
        promote_mirrored(target, ["orders.*"])           # fail-over

Not here: the work (`mirror/`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from semel.client.api.sync import Client
from semel.client.api.telling import run_telling
from semel.client.mirror.ending import MirrorEnd
from semel.client.mirror.mirror_progress import MirrorProgress, MirrorsInfo
from semel.client.mirror.topic_copy import MirrorWork
from semel.client.session import Session

FOR_EVER_S: Final = 100 * 365 * 24 * 3600.0


def run_mirror(
    source: Client,
    target: Client,
    topics: Collection[str],
    *,
    settle_s: float = 1.0,
    progress_s: float = 1.0,
    once: bool = False,
    on_progress: Callable[[MirrorProgress], object] | None = None,
) -> None:
    """Copies topics of one cluster to another one, until it is interrupted; with `once` until the
    target has all that the source had.

    `topics` are names, in which * stands for any characters; topics that are made later are copied
    as well. What would be promoted is brought up to date every `settle_s` seconds, and
    `on_progress` is called every `progress_s` seconds. It goes on where an earlier run has ended,
    however that ended. Raises InvalidRequest if the clusters cannot be a pair or all topics are
    promoted, StaleGeneration once another run goes on with one of the queues, and Unauthenticated
    or PermissionDenied.
    """
    session, into = _session(source), _session(target)
    into.check()

    def start(note: Callable[[MirrorProgress], object]) -> Coroutine[Any, Any, None]:
        return MirrorWork(
            session.cluster,
            into.cluster,
            topics,
            settle_s=settle_s,
            progress_s=progress_s,
            once=once,
            note=note,
        ).run()

    run_telling(session, start, on_progress, FOR_EVER_S, "not copied in time")


def describe_mirrored(target: Client, topics: Collection[str] = ("*",)) -> MirrorsInfo:
    """How far the mirrored topics of a cluster are."""
    session = _session(target)
    return session.run(MirrorEnd(session.cluster, topics).look())


def promote_mirrored(
    target: Client, topics: Collection[str], *, forget_producers: bool = False
) -> MirrorsInfo:
    """Makes topics of this cluster of the copies, and returns where each queue goes on.

    Only the target is asked. A repeated call goes on. With `forget_producers`, producers whose
    names are those of others here begin anew in these topics. Raises InvalidRequest.
    """
    session = _session(target)
    work = MirrorEnd(session.cluster, topics).promote(forget_producers=forget_producers)
    return session.run(work)


def drop_mirrored(target: Client, topics: Collection[str]) -> MirrorsInfo:
    """Gives up the copies of topics that are not promoted. Raises InvalidRequest."""
    session = _session(target)
    return session.run(MirrorEnd(session.cluster, topics).drop())


def _session(client: Client) -> Session:
    session: Session = client._session
    return session
