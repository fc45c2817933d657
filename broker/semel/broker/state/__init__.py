"""What the log means: the replicated state machine, the master's admission and `semel verify`.

How it works. `apply` turns committed entries into the replicated state; `admission` decides about a
request before it is proposed; `verify` recomputes the exactly-once promise from the log alone.
`admission` and `verify` import `apply`, and `apply` imports neither. All of it is pure: no I/O, no
clock, no random numbers.
"""

from semel.broker.state.admission.admission import (
    EXPIRED_ROWS_MAX,
    Admission,
    batch_record_parts,
)
from semel.broker.state.admission.decisions import (
    NO_OFFSET,
    Accepted,
    BatchDecision,
    BatchKey,
    ControlDecision,
    Duplicate,
    DuplicateInFlight,
    LookUpIds,
    Parked,
    ParkKey,
    Refused,
    retry_later,
)
from semel.broker.state.admission.id_admission import CheckedIds, KnownIds
from semel.broker.state.admission.record_limits import NAME_CHARACTERS_MAX, record_refusal
from semel.broker.state.admission.transaction_admission import KeptBatch, TransactionIds
from semel.broker.state.apply.compacted import GONE, STAYS, CompactionSettings
from semel.broker.state.apply.coordination import Begun, Coordination
from semel.broker.state.apply.delay_figures import DueHistogram
from semel.broker.state.apply.delayed_copies import (
    NumberedDelays,
    header_of_copy,
    ordinal_of_copy,
)
from semel.broker.state.apply.delayed_extent import DelayedExtent, DelayedPlace
from semel.broker.state.apply.delays import RELEASE_BATCHES_MAX, Delays
from semel.broker.state.apply.dropped_batches import BatchName
from semel.broker.state.apply.due_seconds import DueLoad
from semel.broker.state.apply.extents import Extent
from semel.broker.state.apply.id_windows import MOVED_ID_BYTES, CopiedIds, IdWindow
from semel.broker.state.apply.live_records import LiveRecords
from semel.broker.state.apply.locks import ConsumerGroups, GroupQueue
from semel.broker.state.apply.lost_offsets import RECORD_BYTES, Lost, LostRange
from semel.broker.state.apply.mirrored import promoted_slice, settings_refusal, slice_refusal
from semel.broker.state.apply.move_places import Incoming, Mirror, MoveState, Place
from semel.broker.state.apply.move_refusals import held_here, move_refusal, unheld
from semel.broker.state.apply.moved_origins import entries_of
from semel.broker.state.apply.moves import Moves
from semel.broker.state.apply.parted import PARTED_BATCHES_MAX, held_above, held_before, rows_crc
from semel.broker.state.apply.producers import SequenceTable, row_message
from semel.broker.state.apply.queues import SLOTS, Child, QueueSettings, QueueState
from semel.broker.state.apply.restored import (
    RESTORE_JOB,
    RestoredSlice,
    restore_slice,
    settings_message,
)
from semel.broker.state.apply.results import (
    ApplyResult,
    BatchApplied,
    CommitApplied,
    CommitOutcome,
    CommitsStaged,
    Compacted,
    DelayedCancelled,
    DelayedGivenUp,
    DelayedParted,
    DelayedReleased,
    Done,
    FenceApplied,
    GroupDeleted,
    IdsChecked,
    LockGranted,
    LockRefused,
    Membership,
    MembershipApplied,
    MoveApplied,
    NodeRef,
    OffsetReset,
    ProducerState,
    Published,
    PublishedPart,
    Released,
    Staged,
    StagedChecked,
    StateDiverged,
    TieredApplied,
    TopicArrivals,
    TransactionApplied,
    WindowEntry,
)
from semel.broker.state.apply.rows import WINDOW_BATCHES, Outcome, OutcomeKind
from semel.broker.state.apply.slices import make_slice, read_slice
from semel.broker.state.apply.splits import ancestors, descendants, unread_error
from semel.broker.state.apply.stagers import Pin, StagedExtent, Stager
from semel.broker.state.apply.staging import Staging
from semel.broker.state.apply.state_machine import State
from semel.broker.state.apply.tiered import ColdRetention, TierState
from semel.broker.state.apply.transactions import Transactions
from semel.broker.state.lag import Progress, progress
from semel.broker.state.lock_clock import LockAge, LockClock
from semel.broker.state.log_clock import LogClock, VoterClocks, majority_time_us
from semel.broker.state.verify.batch_verifier import BatchVerifier, QueueReport
from semel.broker.state.verify.table_verifier import TableVerifier

__all__ = [
    "EXPIRED_ROWS_MAX",
    "GONE",
    "MOVED_ID_BYTES",
    "NAME_CHARACTERS_MAX",
    "NO_OFFSET",
    "PARTED_BATCHES_MAX",
    "RECORD_BYTES",
    "RELEASE_BATCHES_MAX",
    "RESTORE_JOB",
    "SLOTS",
    "STAYS",
    "WINDOW_BATCHES",
    "Accepted",
    "Admission",
    "ApplyResult",
    "BatchApplied",
    "BatchDecision",
    "BatchKey",
    "BatchName",
    "BatchVerifier",
    "Begun",
    "CheckedIds",
    "Child",
    "ColdRetention",
    "CommitApplied",
    "CommitOutcome",
    "CommitsStaged",
    "Compacted",
    "CompactionSettings",
    "ConsumerGroups",
    "ControlDecision",
    "Coordination",
    "CopiedIds",
    "DelayedCancelled",
    "DelayedExtent",
    "DelayedGivenUp",
    "DelayedParted",
    "DelayedPlace",
    "DelayedReleased",
    "Delays",
    "Done",
    "DueHistogram",
    "DueLoad",
    "Duplicate",
    "DuplicateInFlight",
    "Extent",
    "FenceApplied",
    "GroupDeleted",
    "GroupQueue",
    "IdWindow",
    "IdsChecked",
    "Incoming",
    "KeptBatch",
    "KnownIds",
    "LiveRecords",
    "LockAge",
    "LockClock",
    "LockGranted",
    "LockRefused",
    "LogClock",
    "LookUpIds",
    "Lost",
    "LostRange",
    "Membership",
    "MembershipApplied",
    "Mirror",
    "MoveApplied",
    "MoveState",
    "Moves",
    "NodeRef",
    "NumberedDelays",
    "OffsetReset",
    "Outcome",
    "OutcomeKind",
    "ParkKey",
    "Parked",
    "Pin",
    "Place",
    "ProducerState",
    "Progress",
    "Published",
    "PublishedPart",
    "QueueReport",
    "QueueSettings",
    "QueueState",
    "Refused",
    "Released",
    "RestoredSlice",
    "SequenceTable",
    "Staged",
    "StagedChecked",
    "StagedExtent",
    "Stager",
    "Staging",
    "State",
    "StateDiverged",
    "TableVerifier",
    "TierState",
    "TieredApplied",
    "TopicArrivals",
    "TransactionApplied",
    "TransactionIds",
    "Transactions",
    "VoterClocks",
    "WindowEntry",
    "ancestors",
    "batch_record_parts",
    "descendants",
    "entries_of",
    "header_of_copy",
    "held_above",
    "held_before",
    "held_here",
    "majority_time_us",
    "make_slice",
    "move_refusal",
    "ordinal_of_copy",
    "progress",
    "promoted_slice",
    "read_slice",
    "record_refusal",
    "restore_slice",
    "retry_later",
    "row_message",
    "rows_crc",
    "settings_message",
    "settings_refusal",
    "slice_refusal",
    "unheld",
    "unread_error",
]
