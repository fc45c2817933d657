"""The checks of `semel doctor`: turn an inspection into findings with advice. Pure.

How it works. Each check looks for one kind of problem and yields findings; `diagnose` runs them all
and sorts by severity. An *error* means that something does not work, or that the next failure will
do damage: exit status 1. A *warning* asks for a look, a *note* points out a choice.

Not here: asking the cluster (`semel.client.admin.inspection`), printing (`doctor.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from semel.client.admin.certificates import CLIENTS_CA
from semel.client.admin.inspection import ROWS_MAX, Inspection, NodeReport, PeerReport
from semel.console.render import brief, plural

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final = ("error", "warning", "note")
DISK_LOW: Final = 0.10
"""Share of free disk below which a warning is due, early enough to act before it is full."""
DISK_VERY_LOW: Final = 0.03
CLOCK_MS: Final = 1_000
"""Clocks that are further apart get a warning: log time tolerates the difference, but it confuses
people who compare logs."""
EXPIRY_SHARE: Final = 0.2
"""A producer is near its expiry when less than this share of its time is left."""
TIER_LATE_MS: Final = 3_600_000
CERTIFICATE_DAYS: Final = 30
"""Certificates that expire within so many days get a warning."""
STUCK_MS: Final = 120_000
"""A commit that takes this long is stuck: brokers retry it every few seconds."""
NAMES_SHOWN: Final = 5
WAITING: Final = ("joining", "removed")
"""Roles of nodes that are not members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, or one thing worth knowing."""

    severity: Severity
    check: str
    """Name of the check that found it, for scripts."""
    subject: str
    """The part that it concerns: `broker 2`, `topic orders`."""
    text: str
    """The problem."""
    advice: str
    """Advice to the operator."""

    def as_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


Check = Callable[[Inspection], Iterator[Finding]]


def diagnose(found: Inspection) -> list[Finding]:
    """All findings, the most severe first."""
    findings = [finding for check in CHECKS for finding in check(found)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _controllers(found: Inspection) -> Iterator[Finding]:
    for each in found.controllers:
        if each.reason:
            yield Finding(
                severity="error",
                check="controller-unreachable",
                subject=f"controller {each.address}",
                text=f"does not answer: {each.reason}",
                advice="start it, or look at its log and at the network in between",
            )
    if len(found.controllers) == 1:
        yield Finding(
            severity="note",
            check="one-controller",
            subject=f"controller {found.controllers[0].address}",
            text="is the only one",
            advice="while it is down topics cannot be created and groups do not rebalance; what"
            " runs goes on. Run three where that matters",
        )


def _masters(found: Inspection) -> Iterator[Finding]:
    for group in found.status.groups:
        members = [n for n in found.of_group(group.id) if n.role not in WAITING]
        silent = [node for node in members if node.reason]
        master = found.master(group.id)
        if master is None:
            where = ", ".join(f"{node.node} at {node.address}" for node in silent)
            yield Finding(
                severity="error",
                check="no-master",
                subject=f"group {group.id}",
                text=f"has no master that serves; {len(members) - len(silent)} of {len(members)}"
                " nodes answer",
                advice=f"start the nodes that are down ({where})"
                if silent
                else "an election takes a second; if it lasts, look at the nodes' logs",
            )
        elif group.queues > master.queues:
            yield Finding(
                severity="error",
                check="queues-missing",
                subject=f"group {group.id}",
                text=f"has {master.queues} queues, {group.queues} were placed on it: its log is"
                " not the one it had",
                advice="restore it from a node that has the data, or delete the topics that lost"
                " queues; nothing is recreated by itself",
            )
        if len(members) == 1:
            yield Finding(
                severity="warning",
                check="one-node-group",
                subject=f"group {group.id}",
                text="has one node: what its disk loses is lost",
                advice=f"semel cluster grow {group.id} --to 3",
            )


def _racks(found: Inspection) -> Iterator[Finding]:
    """Checks that each group's nodes are spread over the cluster's racks as evenly as possible."""
    racks = {node.rack for group in found.status.groups for node in group.nodes if node.rack}
    for group in found.status.groups if racks else ():
        subject = f"group {group.id}"
        unknown = [str(node.id) for node in group.nodes if not node.rack]
        if unknown:
            yield Finding(
                severity="note",
                check="rack-unknown",
                subject=subject,
                text=f"has nodes that do not know their rack: {_some(unknown)}",
                advice="start them with --rack, like the others",
            )
            continue
        rack, count = Counter(node.rack for node in group.nodes).most_common(1)[0]
        if count > -(-len(group.nodes) // len(racks)):
            crowded = [str(node.id) for node in group.nodes if node.rack == rack]
            majority = count > (len(group.nodes) - 1) // 2
            elsewhere = _some(sorted(racks - {rack}))
            yield Finding(
                severity="warning",
                check="rack-crowded",
                subject=subject,
                text=f"has {count} of {len(group.nodes)} nodes in rack {rack}"
                + (": without that rack it has no majority" if majority else ""),
                advice=f"start a node in {elsewhere} and: semel node replace {crowded[0]} NEW",
            )


def _nodes(found: Inspection) -> Iterator[Finding]:
    for node in found.nodes:
        subject = f"broker {node.node}"
        if node.reason:
            yield Finding(
                severity="error",
                check="broker-unreachable",
                subject=subject,
                text=f"of group {node.group} does not answer: {node.reason}",
                advice=f"start it; if it is gone for good: semel node replace {node.node} NEW",
            )
        elif node.role == "joining":
            yield Finding(
                severity="note",
                check="broker-waits",
                subject=subject,
                text=f"waits to join group {node.group}",
                advice=f"semel node replace OLD {node.node}, or semel cluster grow {node.group}",
            )
        elif node.role == "removed":
            yield Finding(
                severity="note",
                check="broker-removed",
                subject=subject,
                text=f"has left group {node.group} and serves nothing",
                advice="stop it and delete its directory",
            )
        else:
            yield from _member(found, node, subject)


def _member(found: Inspection, node: NodeReport, subject: str) -> Iterator[Finding]:
    master = found.master(node.group)
    if node.non_counting:
        yield Finding(
            severity="warning",
            check="broker-muted",
            subject=subject,
            text="lost its disk and is being fed; no quorum counts it yet",
            advice="wait until it has caught up; the group survives one failure less until then",
        )
    elif master is not None and node.node in found.under_replicated(node.group):
        peer = next(peer for peer in master.peers if peer.node == node.node)
        text, advice = _not_following(peer, node.group, master.node)
        yield Finding(
            severity="warning", check="broker-lags", subject=subject, text=text, advice=advice
        )
    elif not node.electable and not (node.damaged or node.disk_full):
        yield Finding(
            severity="note",
            check="broker-drained",
            subject=subject,
            text="is drained and does not become master",
            advice=f"semel node drain {node.node} --undo, once it may be master again",
        )


def _not_following(peer: PeerReport, group: int, master: int) -> tuple[str, str]:
    """Why a peer that answers does not count as a slave of its master, and the advice."""
    behind = f"{_entry(peer.behind)} behind"
    if not peer.active:
        lag = f", and it is {behind}" if peer.behind else ""
        return (
            f"answers, but the master of group {group} does not hear it{lag}",
            f"wait if it has just been started; else look at the network to broker {master}",
        )
    if not peer.counts:
        return (
            f"is {behind} the master of group {group}, which does not count it yet",
            "wait until it has caught up; the group survives one failure less until then",
        )
    return (
        f"is {behind} the master of group {group}",
        "wait if it has just been started; else look at its disk and its network",
    )


def _damage(found: Inspection) -> Iterator[Finding]:
    for node in found.nodes:
        if node.lost:
            yield Finding(
                severity="error",
                check="entries-lost",
                subject=f"broker {node.node}",
                text=f"{_entries(node.lost)} on every node of group {node.group}: what is there"
                " is refused, all the rest is served",
                advice="restore the files that the log names on one node, from a backup",
            )
        elif node.damaged:
            yield Finding(
                severity="warning",
                check="entries-damaged",
                subject=f"broker {node.node}",
                text=f"{_entries(node.damaged)} on its disk and not repaired yet",
                advice="peers repair them; if this stays or comes back, replace the disk:"
                f" semel node replace {node.node} NEW",
            )


def _disks(found: Inspection) -> Iterator[Finding]:
    for node in found.nodes:
        share = node.disk_free_bytes / node.disk_total_bytes if node.disk_total_bytes else 1.0
        if not node.disk_full and share >= DISK_LOW:
            continue
        left = f"{share:.1%} of its disk is free"
        yield Finding(
            severity="error" if node.disk_full or share < DISK_VERY_LOW else "warning",
            check="disk-full" if node.disk_full else "disk-nearly-full",
            subject=f"broker {node.node}",
            text="has no room for another segment" if node.disk_full else left,
            advice="make room, or shorten retention: semel topic alter TOPIC --retention …; what"
            " is acknowledged is safe",
        )


def _memory(found: Inspection) -> Iterator[Finding]:
    """Finds nodes that lack messages of topics in memory which other nodes of their group have."""
    for node in found.nodes:
        others = [each for each in found.of_group(node.group) if each is not node]
        if node.memory_pulling and any(each.memory_bytes for each in others):
            yield Finding(
                severity="warning",
                check="memory-pulling",
                subject=f"broker {node.node}",
                text="still pulls messages of topics in memory from the other nodes of group"
                f" {node.group}",
                advice="stop none of them until it is done: what only they have would be lost."
                " `semel node drain` waits for that; --catch-up-rate bounds how fast it goes",
            )


def _delayed(found: Inspection) -> Iterator[Finding]:
    """Finds delayed messages that the children of a split wait for in vain."""
    for node in found.nodes:
        for one in node.stuck_delayed:
            queue = f"{one.topic or f'(topic {one.topic_id:016x})'}/{one.queue}"
            yield Finding(
                severity="error",
                check="delayed-unreadable",
                subject=f"queue {queue}",
                text="was split, and its next delayed batch cannot be handed to its children"
                f" ({one.reason}): {plural(one.messages, 'message')} of it, and"
                f" {one.behind:,} behind it wait",
                advice="bring back the nodes of group"
                f" {node.group} that are away, or restore a file that has it. If nobody has it:"
                f" semel delay give-up {queue}",
            )


def _tiers(found: Inspection) -> Iterator[Finding]:
    """Finds nodes that cannot reach the object store, and messages that do not get there."""
    for node in found.nodes:
        subject = f"broker {node.node}"
        if node.tiered_queues and not node.tier:
            yield Finding(
                severity="error",
                check="tier-missing",
                subject=subject,
                text="was started without --tier, and cannot read the older messages of"
                f" {plural(node.tiered_queues, 'tiered queue')}",
                advice="start it with the URL that the other brokers have",
            )
        elif node.tier and not node.tier_usable:
            yield Finding(
                severity="error",
                check="tier-unusable",
                subject=subject,
                text=f"cannot use the object store {node.tier}",
                advice="its log says why: look for 'object store'; newer messages are served",
            )
        if node.tier_overdue_ms > TIER_LATE_MS:
            yield Finding(
                severity="warning",
                check="tier-late",
                subject=subject,
                text="has messages that should have been in the object store for"
                f" {node.tier_overdue_ms / 3_600_000:.1f} h",
                advice="its log says why, if the store refuses them; else raise"
                " --tier-bytes-per-second. Brokers keep them meanwhile: watch the disks",
            )


def _plaintext(found: Inspection) -> Iterator[Finding]:
    """Finds nodes whose replication does without TLS in some networks."""
    for node in found.nodes:
        if node.replication_plaintext_within:
            networks = ", ".join(node.replication_plaintext_within)
            yield Finding(
                severity="warning",
                check="replication-in-plaintext",
                subject=f"broker {node.node}",
                text=f"SENDS AND TAKES ALL MESSAGES IN PLAINTEXT INSIDE {networks}: whoever listens"
                " there reads them, and whoever stands in between changes them",
                advice="keep strangers out of these networks, or start it without"
                " --replication-plaintext-within",
            )


def _clocks(found: Inspection) -> Iterator[Finding]:
    """Finds nodes whose clock differs from most others', beyond the error of measurement."""
    known = sorted((node for node in found.nodes if not node.reason), key=lambda n: n.clock_ms)
    if not known:
        return
    middle = known[len(known) // 2]
    for node in known:
        off = node.clock_ms - middle.clock_ms
        if abs(off) - node.clock_doubt_ms - middle.clock_doubt_ms > CLOCK_MS:
            yield Finding(
                severity="warning",
                check="clock-skew",
                subject=f"broker {node.node}",
                text=f"its clock is {off / 1000:+.1f} s off the others'",
                advice="run a time service there; log time follows the majority, so nothing is"
                " lost meanwhile",
            )


def _versions(found: Inspection) -> Iterator[Finding]:
    parts = [(f"controller {c.address}", c.version) for c in found.controllers if c.version]
    parts += [(f"broker {n.node}", n.version) for n in found.nodes if n.version]
    counts = Counter(version for _, version in parts)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for subject, version in parts:
        if version != usual:
            yield Finding(
                severity="warning",
                check="version-skew",
                subject=subject,
                text=f"runs {version}, most others run {usual}",
                advice="finish the upgrade, one node after the other: semel node drain",
            )


def _levels(found: Inspection) -> Iterator[Finding]:
    """Finds programs that know fewer feature levels than others, and levels not raised yet."""
    known = {f"broker {n.node}": n.level_max for n in found.nodes if not n.reason}
    known |= {f"controller {c.address}": c.level_max for c in found.controllers if not c.reason}
    common, newest = min(known.values(), default=0), max(known.values(), default=0)
    for subject, most in known.items():
        if most < newest:
            yield Finding(
                severity="warning",
                check="level-behind",
                subject=subject,
                text=f"knows feature levels up to {most}, others up to {newest}",
                advice="upgrade it; until then the cluster stays at the level that all know",
            )
    active = {
        f"group {group.id}": master.level
        for group in found.status.groups
        if (master := found.master(group.id)) is not None and master.level
    }
    stored = max((each.level for each in found.controllers), default=0)
    if stored:
        active["the metadata"] = stored
    for subject, level in active.items():
        if level < common:
            yield Finding(
                severity="note",
                check="level-not-raised",
                subject=subject,
                text=f"is at feature level {level}, every program knows {common}",
                advice="once you are sure to keep this version: semel cluster upgrade --check, and"
                " then --finish",
            )


def _topics(found: Inspection) -> Iterator[Finding]:
    for topic in found.status.unfinished:
        yield Finding(
            severity="error" if topic.reason else "note",
            check="queue-moving" if topic.step.startswith(_MOVING) else "topic-unfinished",
            subject=f"topic {topic.name}",
            text=(
                f"is {topic.step}"
                if topic.step.startswith(_MOVING)
                else f"is being {_PARTICIPLES.get(topic.step, topic.step)}"
            )
            + (f": {topic.reason}" if topic.reason else ""),
            advice="it goes on by itself once both broker groups have a master and answer; as long"
            " as it is not decided, `semel queue move TOPIC/QUEUE --cancel` gives it up"
            if topic.step.startswith(_MOVING)
            else "it goes on by itself once every broker group has a master",
        )


_MOVING: Final = "moving queue "
_PARTICIPLES: Final = {"creating": "created", "altering": "altered", "deleting": "deleted"}


def _consumers(found: Inspection) -> Iterator[Finding]:
    """Finds consumers that are away. Groups that consumers never joined have none to start: their
    progress is that of a Spark stream, or of redrives."""
    for group in found.consumers:
        if group.lag and group.joined and not group.members and not group.locks:
            yield Finding(
                severity="warning",
                check="group-idle",
                subject=f"group {group.group}",
                text=f"has no members and is {plural(group.lag, 'message')} behind on"
                f" {_some(group.topics)}",
                advice=f"start its consumers, or forget it: semel group delete {group.group}",
            )


def _producers(found: Inspection) -> Iterator[Finding]:
    for producer in found.producers:
        whole_ms = producer.idle_ms + producer.expires_ms
        if producer.expires_ms < whole_ms * EXPIRY_SHARE:
            yield Finding(
                severity="warning",
                check="producer-expires",
                subject=f"producer {producer.name}",
                text=f"stored nothing for {brief(producer.idle_ms)} on a queue that forgets it in"
                f" {brief(max(0, producer.expires_ms))}",
                advice="run it before that if it still has something to send: afterwards it cannot"
                " find out what was stored",
            )


def _transactions(found: Inspection) -> Iterator[Finding]:
    for one in found.transactions:
        if one.age_ms < STUCK_MS or one.state not in ("publishing", "committing"):
            continue
        groups = ", ".join(str(group) for group in one.participants)
        if one.state == "publishing":
            text = (
                f"epoch {one.last_epoch} was committed {brief(one.age_ms)} ago and is not published"
            )
            advice = "bring the masters of these groups back: they publish it by themselves"
        else:
            text = f"has waited {brief(one.age_ms)} for its decision"
            advice = (
                f"bring group {one.coordinator or '?'} back, which decides; then, if it still"
                f" waits: semel transaction abort {one.transaction_id}"
            )
        yield Finding(
            severity="warning",
            check="transaction-stuck",
            subject=f"transaction {one.transaction_id}",
            text=f"{text} on group {groups}; no reader waits for it",
            advice=advice,
        )


def _certificates(found: Inspection) -> Iterator[Finding]:
    for one in found.certificates:
        days = one.left_s // 86_400
        if days >= CERTIFICATE_DAYS:
            continue
        ended = one.left_s <= 0
        advice = "semel security renew, and copy its new files to its machine; nothing is restarted"
        if one.subject == "the CA":
            advice = "change it in three steps while all runs: semel security renew --help"
        elif one.subject.startswith(CLIENTS_CA):
            advice = (
                "change it in two steps while all runs, or nobody can log in: semel security renew"
                " --logins, and copy clients-ca.pem to all nodes, then all files to the controllers"
            )
        yield Finding(
            severity="error" if ended else "warning",
            check="certificate-expired" if ended else "certificate-expires",
            subject=one.subject,
            text="has a certificate that has expired"
            if ended
            else f"has a certificate that expires in {plural(days, 'day')}",
            advice=advice,
        )


def _unseen(found: Inspection) -> Iterator[Finding]:
    for group in found.unseen_groups:
        yield Finding(
            severity="note",
            check="not-looked-at",
            subject=f"group {group}",
            text="consumer groups and producers on it could not be looked at",
            advice="call this again when it has a master",
        )
    for group in found.crowded_groups:
        yield Finding(
            severity="note",
            check="producers-not-all-looked-at",
            subject=f"group {group}",
            text=f"has more than {ROWS_MAX:,} rows of producers; the others may be near their end",
            advice="semel producer describe NAME looks at one",
        )


CHECKS: Final[tuple[Check, ...]] = (
    _controllers,
    _masters,
    _racks,
    _nodes,
    _damage,
    _disks,
    _memory,
    _delayed,
    _tiers,
    _plaintext,
    _clocks,
    _versions,
    _levels,
    _topics,
    _consumers,
    _producers,
    _transactions,
    _certificates,
    _unseen,
)


def _entry(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _entries(count: int) -> str:
    return f"{_entry(count)} {'is' if count == 1 else 'are'} damaged"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
