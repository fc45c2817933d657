"""pysyncobj's messages as protobuf: a closed list, checked on arrival.

How it works. pysyncobj passes dictionaries to its transport, which would pickle them. Here each
kind that is used has a protobuf message of its own; no other kind can be encoded at all, so nothing
from the network is ever unpickled. Pre-votes and "your term is over" are our own messages and have
no dictionary.

Not here: how a message is handled (`consensus.py`).
"""

from __future__ import annotations

from typing import Any

from semel.controller.store.embedded.dump import Piece
from semel.controller.store.embedded.journal import COMMAND, Entry, check_kind
from semel.protos.v1.metadata_store_pb2 import (
    AppendEntries,
    DumpChunk,
    ForwardCommand,
    GrantVote,
    GroupEntry,
    GroupMessage,
    NextIndex,
    RequestVote,
)


def to_message(term: int, message: dict[str, Any]) -> GroupMessage:
    """pysyncobj's dictionary as a message of `term`. Raises ValueError for an unknown kind."""
    assert message.get("term", term) == term
    match message["type"]:
        case "append_entries" if "serialized" in message:
            return GroupMessage(term=term, dump=_dump_chunk(message))
        case "append_entries" if "transmission" not in message:
            return GroupMessage(
                term=term,
                append=AppendEntries(
                    previous_index=message["prevLogIdx"],
                    previous_term=message["prevLogTerm"],
                    entries=[
                        GroupEntry(index=index, term=entry_term, command=command)
                        for command, index, entry_term in message["entries"]
                    ],
                    commit_index=message["commit_index"],
                ),
            )
        case "next_node_idx":
            return GroupMessage(
                term=term,
                next=NextIndex(
                    next_index=message["next_node_idx"],
                    reset=message["reset"],
                    success=message["success"],
                ),
            )
        case "request_vote":
            return GroupMessage(
                term=term,
                vote=RequestVote(
                    last_index=message["last_log_index"], last_term=message["last_log_term"]
                ),
            )
        case "response_vote":
            return GroupMessage(term=term, grant=GrantVote())
        case "apply_command":
            return GroupMessage(term=term, forward=ForwardCommand(command=message["command"]))
        case kind:
            raise ValueError(f"pysyncobj sends {kind!r}, which is not in use here")


def check(message: GroupMessage) -> GroupMessage:
    """Returns a peer's message unchanged. Raises ValueError when its content is not in use."""
    match message.WhichOneof("kind"):
        case "append":
            _check_entries(message.term, message.append)
        case "forward":
            if check_kind(message.forward.command)[:1] != COMMAND:
                raise ValueError("only commands are forwarded")
        case None:
            raise ValueError("a message of an unknown kind")
    return message


def entries_of(append: AppendEntries) -> list[Entry]:
    """The entries of a checked message."""
    return [Entry(entry.command, entry.index, entry.term) for entry in append.entries]


def piece_of(chunk: DumpChunk) -> Piece | None:
    """The piece of a dump that the chunk holds; None for a heartbeat."""
    if not chunk.index:
        return None
    end = chunk.position + len(chunk.data)
    return Piece(
        data=chunk.data,
        is_first=chunk.position == 0,
        is_last=end == chunk.total_bytes,
        index=chunk.index,
        position=chunk.position,
        total_bytes=chunk.total_bytes,
    )


def _dump_chunk(message: dict[str, Any]) -> DumpChunk:
    chunk = DumpChunk(commit_index=message["commit_index"])
    piece = message["serialized"]
    if piece is not None:
        assert isinstance(piece, Piece)
        chunk.index = piece.index
        chunk.position = piece.position
        chunk.total_bytes = piece.total_bytes
        chunk.data = piece.data
    return chunk


def _check_entries(term: int, append: AppendEntries) -> None:
    """Raises ValueError unless the entries follow their predecessor without a gap."""
    index, entry_term = append.previous_index, append.previous_term
    if index < 1 or entry_term > term:
        raise ValueError(f"entries follow index {index} of term {entry_term}, sent in term {term}")
    for entry in append.entries:
        check_kind(entry.command)
        if entry.index != index + 1 or not entry_term <= entry.term <= term:
            raise ValueError(f"entry {entry.index} of term {entry.term} follows {index}")
        index, entry_term = entry.index, entry.term
