"""Which messages of a compacted queue go, and the batches that take the places of others.

Pure: what is read, the time and the seed come in as arguments.
"""

from semel.broker.compaction.newest import NewestOffsets
from semel.broker.compaction.runs import CompactedBatch, CompactedRun, RunBuilder

__all__ = ["CompactedBatch", "CompactedRun", "NewestOffsets", "RunBuilder"]
