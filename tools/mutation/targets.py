"""The targets of mutation: files of the product, and the tests that must notice their mutants.

A target names files of the product and the tests that are run against their mutants; a test that
does not execute the changed line is left out for that mutant. Tests of whole processes are not
included: they take seconds each, and a mutant that only they notice deserves a test of its own.

`tests/sim` takes part with a few seeds (`few_seeds.py`), and so do the simulated clusters
(`few_worlds.py`), for code without a pure core: the client's threads, and the background work of
masters and controllers. Their full runs would only kill more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_BROKER: Final = "broker/semel/broker"
_CLIENT: Final = "client/semel/client"
_CONTROLLER: Final = "controller/semel/controller"
_GATEWAY: Final = "gateway/semel/gateway"


@dataclass(frozen=True, slots=True)
class Target:
    """Files and tests, relative to the repository; a folder stands for all its files.

    A test behind a "!" is left out.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[Path]:
        """The Python files, without those that only re-export. Raises FileNotFoundError."""
        found: list[Path] = []
        for name in self.files:
            path = ROOT / name
            if not path.exists():
                raise FileNotFoundError(path)
            found += sorted(path.glob("*.py")) if path.is_dir() else [path]
        return [path for path in found if path.name != "__init__.py"]


_CLIENT_TESTS: Final = (
    "tests/unit/client",
    "!tests/unit/client/test_java.py",  # starts processes
    "tools/mutation/few_worlds.py",
)

TARGETS: Final = {
    "raft": Target(
        files=(f"{_BROKER}/raft",),
        tests=(
            "tests/unit/broker/raft",
            "tests/scenarios",
            "tests/known_bugs/test_raft.py",
            "tools/mutation/few_seeds.py",
        ),
    ),
    "log": Target(
        files=tuple(
            f"{_BROKER}/log/{name}.py"
            for name in (
                "recovery",
                "segment",
                "hard_state",
                "checkpoint",
                "writer",
                "active",
                "index",
            )
        ),
        tests=("tests/unit/broker/log", "tests/known_bugs"),
    ),
    "dedup": Target(
        files=tuple(
            f"{_BROKER}/dedup/{name}.py"
            for name in (
                "dropped_answers",
                "fingerprints",
                "id_filter",
                "id_index",
                "id_places",
                "id_rows",
                "id_runs",
                "looked_up",
                "moved_ids",
                "pinned_ids",
                "published_ids",
                "recent_ids",
                "run_copies",
                "run_list",
                "sorted_ids",
            )
        ),
        tests=(
            "tests/unit/broker/dedup",
            "tests/unit/broker/state/test_ids.py",
            "tests/unit/broker/state/test_id_transactions.py",
        ),
    ),
    "memory": Target(
        files=(f"{_BROKER}/memory", f"{_BROKER}/background/memory_bodies.py"),
        tests=("tests/unit/broker/memory", "tests/unit/broker/background/test_memory_bodies.py"),
    ),
    "compaction": Target(
        files=(f"{_BROKER}/compaction", f"{_BROKER}/state/apply/compacted.py"),
        tests=("tests/unit/broker/compaction", "tools/mutation/few_worlds.py"),
    ),
    "quotas": Target(
        files=(
            f"{_BROKER}/quotas/fair_line.py",
            f"{_BROKER}/quotas/turns.py",
        ),
        tests=("tests/unit/broker/quotas",),
    ),
    "state": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "apply/producers",
                "apply/rows",
                "admission/admission",
                "admission/queue_admission",
                "admission/batch_limits",
                "admission/id_admission",
                "admission/record_limits",
                "apply/results",
                "apply/lost_offsets",
                "admission/parking",
                "apply/dropped_batches",
                "apply/expired",
                "apply/id_windows",
                "apply/queues",
                "apply/queue_table",
                "apply/tiered",
                "apply/restored",
                "apply/deleted_tiers",
                "admission/pending",
                "apply/splits",
            )
        ),
        tests=("tests/unit/broker/state", "tests/known_bugs/test_produce.py"),
    ),
    "features": Target(
        files=tuple(
            f"{_BROKER}/state/{name}.py"
            for name in (
                "apply/mirrored",
                "apply/move_places",
                "apply/move_refusals",
                "apply/moves",
                "apply/slices",
                "apply/staged_commits",
                "apply/stagers",
                "apply/staging",
                "apply/coordination",
                "apply/transactions",
                "apply/delayed_copies",
                "apply/delays",
                "apply/delayed_block",
                "apply/delayed_extent",
                "apply/delayed_queue",
                "apply/live_records",
                "apply/move_ids",
                "apply/moved_origins",
                "apply/parted",
                "apply/cancelled_rows",
                "apply/delay_figures",
                "apply/delay_limits",
                "apply/due_seconds",
                "apply/release_history",
                "admission/due_loads",
                "admission/transaction_admission",
                "admission/delay_admission",
                "admission/cancel_admission",
                "admission/part_admission",
                "apply/locks",
                "lock_clock",
                "log_clock",
            )
        ),
        tests=("tests/unit/broker/state", "tools/mutation/few_worlds.py"),
    ),
    "duties": Target(
        files=tuple(
            f"{_BROKER}/{name}.py"
            for name in (
                "replica/replica",
                "replica/driver",
                "replica/applier",
                "replica/mastership",
                "replica/feature_levels",
                "replica/log_time",
                "replica/peers",
                "replica/pools",
                "replica/term_and_vote",
                "replica/ack_sink",
                "replica/proposer",
                "replica/requests",
                "replica/stored_batches",
                "membership/status",
                "membership/asking",
                "membership/founding",
                "identity",
                "replica/member_book",
                "replica/id_indexes",
                "replica/message_ids",
                "replica/pinned_look_up",
                "membership/changes",
                "membership/memory_safety",
                "snapshots/checkpoints",
                "snapshots/install",
                "snapshots/records",
                "snapshots/snapshot_service",
                "snapshots/pull",
                "snapshots/pace",
                "snapshots/id_pull",
                "repair/repair",
                "repair/decision",
                "background/retention",
                "background/checkpointing",
                "background/lock_expiry",
                "background/producer_expiry",
                "background/full_disk",
                "background/queue_copy",
                "background/delayed_release",
                "background/delayed_parting",
                "background/publication",
                "background/transaction_work",
                "background/compaction_passes",
                "background/queues_in_turns",
                "background/tiering",
                "background/tier_garbage",
                "background/tier_reading",
                "background/tier_facts",
                "background/queue_restore",
                "tiers/cold_groups",
                "tiers/cold_reads",
                "tiers/place",
                "tiers/pointers",
                "control_plane/group_calls",
                "control_plane/kept_rights",
                "control_plane/producer_owners",
                "replica/confirmed_reads",
                "replica/log_view",
                "replica/fetch_waiters",
                "control_plane/rights_copy",
                "control_plane/route_cache",
                "log/kernel_sync",
                "log/log",
            )
        ),
        tests=(
            "tests/unit/broker",
            "!tests/unit/broker/raft",
            "!tests/unit/broker/state",
            "tools/mutation/few_worlds.py",
        ),
    ),
    "producers": Target(
        files=(
            f"{_CLIENT}/core",
            *(
                f"{_CLIENT}/{name}.py"
                for name in (
                    "producer/producer",
                    "producer/topic",
                    "producer/intake",
                    "producer/lanes",
                    "producer/split_lanes",
                    "session",
                    "producer/identity",
                    "producer/memory",
                    "producer/rare_fields",
                    "tracing/traced_intake",
                    "transport/produce_stream",
                    "transport/streams",
                    "transactions/staging",
                    "transactions/commit",
                    "api/transaction_work",
                )
            ),
        ),
        tests=_CLIENT_TESTS,
    ),
    "consumers": Target(
        files=tuple(
            f"{_CLIENT}/{name}.py"
            for name in (
                "consumer/consumer",
                "consumer/locks",
                "consumer/lock_renewals",
                "consumer/lock_retries",
                "consumer/group_tasks",
                "consumer/commits",
                "reading/outstanding",
                "reading/pulling",
                "reading/feed_queue",
                "reading/fetch",
                "transport/fetch_streams",
                "transport/shared_memory",
                "consumer/start_offsets",
                "consumer/membership",
                "admin/progress",
                "reading/offsets",
                "admin/resets",
                "admin/topic_index",
                "consumer/sql_offsets",
                "api/sql_transaction",
                "dead_letters/retrying",
                "dead_letters/relay",
                "dead_letters/listing",
                "dead_letters/redrive",
                "dead_letters/redrive_lock",
                "tracing/carrying",
                "tracing/receiving",
            )
        ),
        tests=_CLIENT_TESTS,
    ),
    "controller": Target(
        files=tuple(
            f"{_CONTROLLER}/{name}.py"
            for name in (
                "groups/balance",
                "groups/group",
                "groups/memberships",
                "producers",
                "brokers/registry",
                "brokers/calls",
                "brokers/liveness",
                "topics/placement",
                "brokers/preference",
                "moves/moves",
                "moves/move_table",
                "topics/foreign_topics",
                "topics/lineages",
                "topics/mirrors",
                "topics/restores",
                "topics/setting_levels",
                "topics/id_dedup",
                "topics/splits",
                "topics/topic_table",
                "topics/topics",
                "active/active_controller",
                "rights",
                "users",
                "active/succession",
                "epoch",
            )
        ),
        tests=("tests/unit/controller", "tools/mutation/few_worlds.py"),
    ),
    "kafka-transactions": Target(
        files=(f"{_GATEWAY}/transactions",),
        tests=("tests/unit/gateway/transactions",),
    ),
    "kafka-producing": Target(
        files=tuple(
            f"{_GATEWAY}/producing/{name}.py"
            for name in ("kafka_numbers", "kafka_window", "stage_lanes", "stage_window")
        ),
        tests=("tests/unit/gateway/producing",),
    ),
    "kafka-groups": Target(
        files=(f"{_GATEWAY}/groups",),
        tests=("tests/unit/gateway/groups",),
    ),
    "kafka-fetching": Target(
        files=(f"{_GATEWAY}/fetching/fetch_sessions.py",),
        tests=("tests/unit/gateway/fetching/test_fetch_sessions.py",),
    ),
    "kafka-logins": Target(
        files=tuple(
            f"{_GATEWAY}/principals/{name}.py" for name in ("attempts", "proofs", "sasl_state")
        ),
        tests=("tests/unit/gateway/principals",),
    ),
    "kafka-records": Target(
        files=(f"{_GATEWAY}/records",),
        tests=("tests/unit/gateway/records",),
    ),
}


def _in(room: str, *names: str) -> frozenset[str]:
    return frozenset(f"{room}/{name}.py" for name in names)


LEFT_OUT: Final = frozenset().union(
    # Wiring, settings, programs and metrics: tests of whole processes look at them.
    _in(_BROKER, "__main__", "c_malloc", "config", "metric_table", "node", "numpy_features"),
    _in(_BROKER, "probe", "readiness", "resources"),
    _in(f"{_GATEWAY}/fetching", "fetch", "fetch_response", "queue_polls", "queue_reader"),
    _in(f"{_GATEWAY}/fetching", "queue_runs", "stored_batches"),
    _in(f"{_GATEWAY}/producing", "kafka_lanes", "plain_producer", "produce", "produce_response"),
    _in(f"{_GATEWAY}/principals", "principal", "principal_pool", "sasl_gate", "sasl_handlers"),
    _in(f"{_GATEWAY}/principals", "sasl_verdict", "scram_level"),
    _in(f"{_BROKER}/background", "maintenance", "memory_bounds", "propose"),
    _in(f"{_BROKER}/log", "log_config", "store", "types"),
    _in(f"{_BROKER}/replica", "clock", "fatal", "newest_state"),
    _in(_CLIENT, "_fork", "certified", "client_file", "config", "java", "login", "message"),
    _in(_CLIENT, "scram"),
    _in(f"{_CLIENT}/consumer", "consumer_config"),
    _in(_CONTROLLER, "__main__", "config", "node", "opening", "probe", "records", "server"),
    # Classes for callers, half of them generated, and calls that pass things on.
    _in(
        f"{_CLIENT}/api",
        "aio",
        "aio_access_admin",
        "aio_admin",
        "aio_cluster_admin",
        "aio_message_admin",
        "aio_reading",
        "aio_table",
        "aio_topic_admin",
        "aio_transactions",
        "connect",
        "mirrors",
    ),
    _in(
        f"{_CLIENT}/api",
        "sync",
        "sync_access_admin",
        "sync_admin",
        "sync_cluster_admin",
        "sync_message_admin",
        "sync_reading",
        "sync_table",
        "sync_topic_admin",
        "sync_transactions",
        "telling",
    ),
    _in(f"{_CLIENT}/admin", "audit", "calls", "delay_history", "delays", "descriptions"),
    _in(f"{_CLIENT}/admin", "group_pages", "id_windows", "inspection", "nodes", "quotas", "rights"),
    _in(f"{_CLIENT}/admin", "rolling", "settings"),
    _in(
        f"{_CLIENT}/admin",
        "found_message",
        "given_up",
        "restore",
        "stored_message",
        "tier_restore",
        "topic_settings",
    ),
    _in(f"{_CLIENT}/admin", "upgrade", "upgrade_check", "verify"),
    _in(f"{_CLIENT}/transactions", "transaction_info"),
    _in(f"{_CLIENT}/reading", "untraced"),
    _in(f"{_CLIENT}/tracing", "spans", "tracing"),
    # Files, sockets, threads and processes.
    _in(f"{_BROKER}/control_plane", "load", "reports"),
    _in(
        f"{_BROKER}/quotas",
        "broker_quotas",
        "open_producers",
        "read_pace",
        "topic_amounts",
        "write_pace",
    ),
    _in(f"{_BROKER}/dedup", "id_store", "rocks_store"),
    _in(f"{_BROKER}/log", "cache", "cleaner", "current", "descriptors", "files"),
    _in(f"{_BROKER}/log", "directory_identity", "keeper", "kept", "owner", "reader", "scrubbing"),
    _in(f"{_BROKER}/membership", "members_service"),
    _in(f"{_BROKER}/repair", "quarantine", "scrub"),
    _in(f"{_CLIENT}/producer", "futures"),
    _in(f"{_CLIENT}/reading", "reader"),
    _in(f"{_CLIENT}/admin", "certificates"),
    _in(f"{_CLIENT}/transport", "cluster", "connection", "controllers", "master_search"),
    _in(f"{_CLIENT}/transport", "routes_file", "runtime"),
    # Pure, and without a target so far.
    _in(f"{_BROKER}/state", "lag"),
    _in(f"{_BROKER}/state/admission", "decisions"),
    _in(f"{_BROKER}/state/apply", "codec", "extents", "move_home", "state_machine"),
    _in(f"{_CONTROLLER}/brokers", "changes", "foundings", "routes"),
    _in(f"{_CONTROLLER}/topics", "held", "rules"),
)
"""Files of the targets' folders that are in no target."""
