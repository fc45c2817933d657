"""Whether a node may stop or leave as far as topics in memory are concerned.

How it works. Bodies of topics in memory are in the memory of nodes and nowhere else
(`memory/bodies.py`). As long as another voter still pulls bodies, or does not answer, a node that
has some may be the last one to have them. A node without any has nothing to lose, so groups without
topics in memory ask nobody.

Not here: pulling bodies and giving them up (`background/memory_bodies.py`).
"""

from __future__ import annotations

from semel.broker.membership.asking import ask_all
from semel.broker.replica.replica import Replica
from semel.protos.ids import NodeId


async def stop_refusal(replica: Replica, leaving: NodeId) -> str:
    """The reason why bodies could be lost if `leaving` stopped now; empty if none could.

    Asked of this node itself, or of the master about another member.
    """
    own = replica.config.node_id
    if not _has_memory(replica, itself=leaving == own):
        return ""
    members = replica.peers.addresses
    others = replica.core.membership.voters - {own, leaving}
    asked = {node: members[node] for node in others | {leaving} if node != own and node in members}
    answers = await ask_all(asked, replica.config.security)
    if leaving != own and (leaving not in answers or not answers[leaving].memory_bytes):
        return ""  # what it had is gone already, or it has nothing
    pulling = sorted(node for node in others if node in answers and answers[node].memory_pulling)
    if own != leaving and replica.bodies.missing_to:
        pulling = sorted([*pulling, own])
    silent = sorted(others - answers.keys())
    if not pulling and not silent:
        return ""
    what = f"node {_and(pulling)} still pulls messages of topics in memory" if pulling else ""
    what += "; " if pulling and silent else ""
    what += f"node {_and(silent)} does not answer" if silent else ""
    return (
        f"messages of topics in memory could be lost if node {leaving} stopped now: {what}. Wait"
        " until every other node has them (`semel doctor`), or ignore it with --ignore-memory"
    )


async def copies_refusal(replica: Replica) -> str:
    """The reason why the queue that is copied here must not be given up at its source yet: it is
    not certain that a majority of this group has the bodies of all applied entries. Empty if it is.

    Asked of the master.
    """
    own, applied = replica.config.node_id, replica.state.applied_index
    members, voters = replica.peers.addresses, replica.core.membership.voters
    asked = {node: members[node] for node in voters if node != own and node in members}
    answers = await ask_all(asked, replica.config.security)
    having = {
        node
        for node, answer in answers.items()
        if not answer.memory_pulling and answer.synced_index >= applied
    }
    if own in voters and not replica.bodies.missing_to:
        having.add(own)
    if 2 * len(having) > len(voters):
        return ""
    return (
        f"only {len(having)} of {len(voters)} nodes of broker group {replica.config.group_id} have"
        " all messages of topics in memory"
    )


def _has_memory(replica: Replica, *, itself: bool) -> bool:
    """Whether the node that is to stop may have bodies, as far as this node can tell."""
    if itself or replica.bodies.bytes:
        return replica.bodies.bytes > 0
    return replica.bodies.missing_to > 0 and any(
        queue.in_memory for queue in replica.state.stored_queues()
    )


def _and(nodes: list[NodeId]) -> str:
    return ", ".join(map(str, nodes))
