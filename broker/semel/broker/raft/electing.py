"""Elections of a master: pre-votes and votes.

How it works. A node that has not heard its master for a while first asks whether a quorum *would*
vote for it (pre-vote), without changing its term. Only when a quorum agrees does it raise its term
and stand. So a node that returns from a partition disturbs nobody, and a node that hears its master
protects the master by refusing (`_in_lease`). A master that hands over orders its successor to
stand at once, with `force`, which overrides that protection.

Invariants
1. A node gives one vote per term, and makes it durable before anyone learns of it; this includes a
   candidate's vote for itself.
2. A node votes only for a log that is at least as new as its own, unsynced entries included.
3. A node whose log is damaged, stalled or being replaced never stands. Nor does a node that is no
   voter, unless the entry that removes it may still be uncommitted.
4. Answers count only for the campaign that asked (`context`), and only from voters.
"""

from __future__ import annotations

from semel.broker.raft.messages import Message, MessageKind
from semel.broker.raft.ready import Role
from semel.broker.raft.replicating import Replicating


class Electing(Replicating):
    """The inputs of elections; the winner continues as a replicating master."""

    # --- campaigning

    def _on_election_timeout(self) -> None:
        if not self._may_stand:
            self.master_id = None
            self._reset_election_deadline()
            return
        self._become_pre_candidate()
        self._ask_for_votes(MessageKind.PRE_VOTE, term=self.term + 1, force=False)
        self._count_pre_votes()

    def _stand(self, *, force: bool) -> None:
        self._become_candidate()
        self._ask_for_votes(MessageKind.VOTE, term=self.term, force=force)

    def _ask_for_votes(self, kind: MessageKind, *, term: int, force: bool) -> None:
        for node in sorted(self.membership.voters):
            if node == self.node_id:
                continue
            self._send(
                Message(
                    kind=kind,
                    source=self.node_id,
                    target=node,
                    term=term,
                    log_index=self.log.last_index,
                    log_term=self.log.last_term,
                    context=self._campaign,
                    force=force,
                )
            )

    def _on_pre_vote_reply(self, message: Message) -> None:
        if self.role is not Role.PRE_CANDIDATE or message.context != self._campaign:
            return
        if not message.rejected and message.term != self.term + 1:
            return
        self._votes[message.source] = not message.rejected
        self._count_pre_votes()

    def _count_pre_votes(self) -> None:
        verdict = self._tally()
        if verdict is True and self._may_stand:
            self._stand(force=False)
        elif verdict is not None:
            # The quorum refused, or the disk has stalled since this node asked.
            self._become_slave(self.term, None)

    def _on_vote_reply(self, message: Message) -> None:
        if self.role is not Role.CANDIDATE or message.context != self._campaign:
            return
        self._votes[message.source] = not message.rejected
        self._count_votes()

    def _on_own_vote_durable(self) -> None:
        self._votes[self.node_id] = True
        self._count_votes()

    def _count_votes(self) -> None:
        if not self._hard_state_durable:
            return
        verdict = self._tally()
        if verdict is True:
            self._become_master()
            self._beat()
        elif verdict is False:
            self._become_slave(self.term, None)

    def _tally(self) -> bool | None:
        """True when a quorum of the voters said yes, False when that is no longer possible, else
        None."""
        voters = self.membership.voters
        said_yes = sum(1 for node in voters if self._votes.get(node) is True)
        said_no = sum(1 for node in voters if self._votes.get(node) is False)
        quorum = self.membership.quorum
        if said_yes >= quorum:
            return True
        return False if said_no > len(voters) - quorum else None

    # --- voting

    def _on_pre_vote(self, message: Message) -> None:
        granted = (
            message.term > self.term
            and self._is_new_enough(message)
            and (message.force or not self._in_lease)
        )
        if granted:
            self._reply(message, MessageKind.PRE_VOTE_REPLY, term=message.term)
        else:
            self._reply(message, MessageKind.PRE_VOTE_REPLY, rejected=True)

    def _on_vote(self, message: Message) -> None:
        granted = (
            self.voted_for in (None, message.source)
            and self.master_id is None
            and self._is_new_enough(message)
        )
        if granted:
            self._reset_election_deadline()
            if self.voted_for is None:
                self._set_hard_state(self.term, message.source)
        self._reply(message, MessageKind.VOTE_REPLY, rejected=not granted)

    def _is_new_enough(self, message: Message) -> bool:
        return (message.log_term, message.log_index) >= (self.log.last_term, self.log.last_index)

    # --- hand-over by the master

    def _on_timeout_now(self, message: Message) -> None:
        if self.role is Role.SLAVE and self.master_id == message.source and self._may_stand:
            self._stand(force=True)
