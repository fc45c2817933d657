"""`semel cluster restore --from URL`: what would be restored, the question, and what was.

Not here: the work (`client/semel/client/admin/tier_restore.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semel.console import render
from semel.console.options import confirm, open_client

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.client import TierRestorePlan, TierRestoreProgress

_STEPS = {"plan": "reading the tier", "queues": "restoring queues"}


def restore_from(
    out: render.Output,
    bootstrap: str,
    url: str,
    without: Sequence[str],
    timeout_s: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Restores the cluster, or shows what a restore would do."""
    with open_client(bootstrap) as client:
        with _told(out) as tell:
            plan = client.admin.look_at_tier(
                url, without=without, timeout=timeout_s, on_progress=tell
            )
        if plan.stage == "ended":
            out.show({"event": "done", **as_json(plan)}, drawn(plan, "was restored before"))
            return
        if dry_run:
            out.show({"event": "plan", **as_json(plan)}, drawn(plan, "would be restored"))
            return
        if plan.stage == "new" and not yes:
            if not out.as_json:
                out.draw(drawn(plan, "would be restored"))
            render.warn(
                f"cluster {plan.owner} must not be alive: its tier {url} becomes this cluster's,"
                f" for good. {gone(plan)}"
            )
            confirm("Restore it here?", yes=yes, as_json=out.as_json)
        with _told(out) as tell:
            done = client.admin.restore_cluster(
                url, without=without, timeout=timeout_s, on_progress=tell
            )
    out.show({"event": "done", **as_json(done)}, drawn(done, "is restored"))


@contextmanager
def _told(out: render.Output) -> Iterator[Callable[[TierRestoreProgress], object]]:
    """Shows progress as a bar on a terminal, or as JSON lines."""
    with out.progress("restore", None, unit="queues") as bar:
        seen: dict[str, int] = {}

        def tell(progress: TierRestoreProgress) -> None:
            if out.as_json:
                out.emit({"event": "progress", **progress.as_dict()})
                return
            before = seen.get(progress.step, 0)
            bar.advance(progress.done - before, progress.total)
            seen[progress.step] = progress.done

        yield tell


def as_json(plan: TierRestorePlan) -> dict[str, object]:
    """The plan with its sums."""
    return {**plan.as_dict(), "queues": plan.queues, "lost": plan.lost}


def gone(plan: TierRestorePlan) -> str:
    """Says in a sentence what is lost."""
    if not plan.lost:
        return "Nothing that the tier knows of is lost."
    return f"{render.plural(plan.lost, 'message')} that only its brokers had are gone."


def drawn(plan: TierRestorePlan, verb: str) -> RenderableType:
    """What becomes, or became, of each queue."""
    from rich.console import Group
    from rich.text import Text

    rows = [
        (
            topic.name,
            str(queue.queue),
            str(queue.start),
            str(queue.end),
            f"{queue.end} to {queue.known_end - 1}" if queue.lost else "",
            queue.delayed_lost or None,
            render.iso(queue.known_us, "seconds"),
            f"{queue.producers} of {queue.producers + queue.reopened}",
            f"{queue.groups - queue.groups_back} of {queue.groups}",
        )
        for topic in plan.topics
        for queue in topic.queues
    ]
    columns = (
        *("topic", "queue", "start", "end", "lost offsets", "delayed lost"),
        *("known as of", "producers that go on", "groups as they were"),
    )
    notes = [
        f"{render.plural(len(plan.topics), 'topic')} of cluster {plan.owner} {verb}:"
        f" {render.plural(plan.queues, 'queue')}. {gone(plan)} What came to a queue after the time"
        " that is shown for it is gone, too."
    ]
    forgetful = [topic.name for topic in plan.topics if topic.forgets_ids]
    if forgetful:
        notes.append(f"message ids are compared anew, from nothing: {', '.join(forgetful)}")
    if plan.left_out:
        notes.append(f"left out: {', '.join(plan.left_out)}")
    return Group(render.table(columns, rows), *(Text(note) for note in notes))
