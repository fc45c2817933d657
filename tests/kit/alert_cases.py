"""Figures under which each alert of deploy/prometheus/rules.yml fires, and some under which none
may: what `./run soak promtool` gives to Prometheus' own evaluation of rules.

Values are written as promtool takes them: `0+5x60` is 0, 5, 10, … for an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NODE: Final = 'job="semel",instance="b1",broker_group="1",node="1"'
CONTROLLER: Final = 'job="semel",instance="c1",controller="1"'
GATEWAY: Final = 'job="semel",instance="g1",gateway="host:9092"'
IN_OFFICE: Final = f"semel_controller_in_office{{{CONTROLLER}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Some series, and the alert that fires after so many minutes."""

    alert: str
    """Empty for none."""
    series: dict[str, str]
    minute: int
    also: tuple[str, ...] = ()
    """Other alerts that fire as well."""
    in_office: bool = True
    """A controller is active all the time."""
    name: str = field(default="")

    @property
    def title(self) -> str:
        """For people."""
        shown = ", ".join(self.series)
        return self.name or f"{self.alert or 'nothing'} at minute {self.minute} with {shown}"


def of_node(alert: str, metric: str, values: str, minute: int, labels: str = "") -> Case:
    """One series of a broker node."""
    return Case(alert=alert, series={node(metric, labels): values}, minute=minute)


def of_controller(alert: str, metric: str, values: str, minute: int, labels: str = "") -> Case:
    """One series of a controller."""
    more = f",{labels}" if labels else ""
    series = {f"semel_controller_{metric}{{{CONTROLLER}{more}}}": values}
    return Case(alert=alert, series=series, minute=minute)


def of_gateway(alert: str, metric: str, values: str, minute: int, labels: str = "") -> Case:
    """One series of a Kafka gateway."""
    return Case(alert=alert, series={gateway(metric, labels): values}, minute=minute)


def node(metric: str, labels: str = "") -> str:
    """The name of a broker node's series."""
    return f"semel_broker_{metric}{{{NODE}{',' + labels if labels else ''}}}"


def gateway(metric: str, labels: str = "") -> str:
    """The name of a Kafka gateway's series."""
    return f"semel_gateway_{metric}{{{GATEWAY}{',' + labels if labels else ''}}}"


def produce_requests(fast: str, all_of_them: str) -> dict[str, str]:
    """Produce requests of a gateway: those that take a second at most, and all."""
    bounds = (("1.0", fast), ("2.5", all_of_them), ("+Inf", all_of_them))
    return {
        gateway("request_seconds_bucket", f'api="produce",le="{bound}"'): values
        for bound, values in bounds
    }


def histogram(metric: str, fast: tuple[str, str], slow: tuple[str, str]) -> dict[str, str]:
    """The series of a histogram with two bounds that matter: each with how it grows."""
    bounds = (fast, slow, ("+Inf", slow[1]))
    shown = {node(f"{metric}_bucket", f'le="{bound}"'): values for bound, values in bounds}
    return shown | {node(f"{metric}_count"): slow[1]}


TOPIC: Final = 'topic="orders"'
LAG: Final = f'consumer_group="billing",{TOPIC}'
INFO: Final = node("info", 'version="0.1.0"')
GATEWAY_INFO: Final = gateway("info", 'version="0.1.0"')
OTHER_GATEWAY: Final = 'semel_gateway_gateways{job="semel",instance="g2",gateway="other:9092"}'
HEALTHY: Final = Case(
    alert="",
    name="a healthy cluster",
    minute=100,
    series={
        'up{job="semel",instance="b1"}': "1x120",
        INFO: "1x120",
        node("serving_master"): "1x120",
        node("under_replicated_voters"): "0x120",
        node("peer_behind_entries", 'peer="2"'): "0 5000 0x120",
        node("muted"): "0x120",
        node("elections_total"): "0 1x120",
        'process_start_time_seconds{job="semel",instance="b1"}': "0 60x120",
        'process_open_fds{job="semel",instance="b1"}': "100x120",
        'process_max_fds{job="semel",instance="b1"}': "1000x120",
        node("disk_free_bytes"): "60-0.01x120",
        node("disk_size_bytes"): "100x120",
        node("disk_full"): "0x120",
        node("damaged_entries"): "0 3 0x120",
        node("lost_entries"): "0x120",
        node("sealed_queues"): "0 1 0x120",
        node("transaction_oldest_seconds"): "3x120",
        node("memory_lost_messages_total", TOPIC): "0x120",
        node("consumer_lag_messages", LAG): "50000x120",
        node("clock_timestamp_seconds"): "1+60x120",
        node("certificate_expiry_timestamp_seconds", 'certificate="own"'): "9999999x120",
        node("quota_throttled_seconds_total", 'owner="user:a",kind="messages"'): "0+6x120",
        node("refused_calls_total"): "0+10x120",
        node("tier_lag_seconds", TOPIC): "3600x120",
        node("compaction_dirty_ratio", TOPIC): "0.5x120",
        node("rights_age_seconds"): "1x120",
        **histogram("log_sync_seconds", ("0.1", "0+100x120"), ("0.25", "0+100x120")),
        **histogram("delayed_lateness_seconds", ("1.0", "0+1000x120"), ("2.5", "0+1001x120")),
        f"semel_controller_masterless_groups{{{CONTROLLER}}}": "0x120",
        f"semel_controller_unfinished_topics{{{CONTROLLER}}}": "0 1 1 0x120",
        'semel_web_requests_total{job="web",instance="w1",screen="topics",status="503"}': "0+1x120",
        GATEWAY_INFO: "1x120",
        gateway("gateways"): "1 1 2 1 1 2x120",
        OTHER_GATEWAY: "2x120",
        gateway("connections"): "50x120",
        gateway("refused_connections_total"): "0 7x120",
        gateway("broken_connections_total"): "0+1x120",
        gateway("request_bytes"): "0 130000000 0 0 0 0 0 0x120",
        gateway("rebalances_total"): "0+1x120",
        gateway("groups"): "2x120",
        **produce_requests("0+100x120", "0+100x120"),
    },
)

CASES: Final = (
    HEALTHY,
    Case(
        alert="SemelNoActiveController", in_office=False, series={IN_OFFICE: "1 1 0x30"}, minute=10
    ),
    Case(alert="SemelNoActiveController", in_office=False, series={INFO: "1x30"}, minute=10),
    of_node("SemelNoMaster", "serving_master", "1 0x30", 5),
    of_controller("SemelNoMaster", "masterless_groups", "0 1x30", 5),
    Case(alert="SemelNotScraped", series={'up{job="semel",instance="b1"}': "0x30"}, minute=5),
    of_controller("SemelNodeSilent", "silent_broker_nodes", "1x30", 5),
    of_node("SemelUnderReplicated", "under_replicated_voters", "1x30", 10),
    of_controller("SemelUnderReplicated", "under_replicated_groups", "1x30", 10),
    of_node("SemelReplicaLags", "peer_behind_entries", "2000x60", 20, 'peer="2"'),
    of_node("SemelNodeMuted", "muted", "1x30", 15),
    of_node("SemelElectionsOften", "elections_total", "0+1x60", 30),
    Case(
        alert="SemelRestartsOften",
        series={
            INFO: "1x60",
            'process_start_time_seconds{job="semel",instance="b1"}': "0 60 120 180 240x60",
        },
        minute=30,
    ),
    Case(
        alert="",
        name="another program that is started often",
        series={'process_start_time_seconds{job="x",instance="x"}': "0 60 120 180 240x60"},
        minute=30,
    ),
    Case(
        alert="SemelVersionsMixed",
        series={INFO: "1x1500", node("info", 'version="0.2.0"'): "1x1500"},
        minute=1450,
    ),
    Case(
        alert="SemelDiskFilling",
        series={node("disk_free_bytes"): "5x30", node("disk_size_bytes"): "100x30"},
        minute=10,
    ),
    Case(
        alert="SemelDiskFullSoon",
        series={node("disk_free_bytes"): "45-0.05x500", node("disk_size_bytes"): "100x500"},
        minute=400,
    ),
    of_node("SemelDiskFull", "disk_full", "1x10", 2),
    Case(
        alert="SemelDiskSlow",
        series=histogram("log_sync_seconds", ("0.1", "0+1x60"), ("0.25", "0+100x60")),
        minute=30,
    ),
    of_node("SemelDiskHangs", "log_oldest_unsynced_seconds", "5x30", 5),
    of_node("SemelEntriesDamaged", "damaged_entries", "1x30", 15),
    of_node("SemelEntriesLost", "lost_entries", "2x10", 2),
    of_controller("SemelTopicUnfinished", "unfinished_topics", "1x30", 15),
    of_node("SemelMoveStuck", "sealed_queues", "1x30", 10),
    of_node("SemelTransactionStuck", "transaction_oldest_seconds", "300x30", 5),
    Case(
        alert="SemelDelayedLate",
        series=histogram("delayed_lateness_seconds", ("1.0", "0+50x60"), ("2.5", "0+100x60")),
        minute=20,
    ),
    of_node("SemelDelayedStuck", "delayed_parting_stuck_queues", "1x30", 10),
    of_node("SemelIdIndexBehind", "id_index_behind", "1x30", 10),
    of_node("SemelIdConflicts", "id_conflicts_total", "0+1x60", 30, TOPIC),
    of_node("SemelMemoryLost", "memory_lost_messages_total", "0x30 7x150", 40, TOPIC),
    of_node("SemelMemoryLost", "memory_lost_messages_total", "7x70 9x100", 80, TOPIC),
    of_node("", "memory_lost_messages_total", "0x30 7x150", 130, TOPIC),
    of_node("SemelMemoryPulling", "memory_pulling", "1x60", 20),
    of_node("SemelCompactionBehind", "compaction_dirty_ratio", "0.9x100", 70, TOPIC),
    of_node("SemelTierUnusable", "tier_usable", "0x30", 10),
    of_node("SemelTierLate", "tier_lag_seconds", "9000x30", 15, TOPIC),
    of_node("SemelTierErrors", "tier_errors_total", "0+1x90", 50),
    of_node("SemelMirrorLate", "mirror_lag_seconds", "600x30", 10),
    of_node("SemelConsumerLagGrows", "consumer_lag_messages", "10000+100x100", 60, LAG),
    of_node("", "consumer_lag_messages", "90000-100x100", 60, LAG),
    Case(
        alert="SemelProduceSlow",
        series=histogram("produce_seconds", ("1.0", "0+1x60"), ("2.5", "0+100x60")),
        minute=30,
    ),
    of_node(
        "SemelThrottled",
        "quota_throttled_seconds_total",
        "0+50x60",
        30,
        'owner="user:a",kind="messages"',
    ),
    of_node("SemelCallsOverflow", "overflowed_calls_total", "0+5x60", 20, 'call_class="scan"'),
    of_controller("SemelCallsOverflow", "overflowed_calls_total", "0+5x60", 20, 'call_class="x"'),
    of_node("SemelConnectionsRefused", "refused_connections_total", "0+5x60", 20, 'port="grpc"'),
    of_controller("SemelConnectionsRefused", "refused_connections_total", "0+5x60", 20, 'port="x"'),
    Case(
        alert="SemelDescriptorsLow",
        series={
            INFO: "1x30",
            'process_open_fds{job="semel",instance="b1"}': "95x30",
            'process_max_fds{job="semel",instance="b1"}': "100x30",
        },
        minute=10,
    ),
    Case(
        alert="SemelDescriptorsLow",
        series={
            GATEWAY_INFO: "1x30",
            'process_open_fds{job="semel",instance="g1"}': "95x30",
            'process_max_fds{job="semel",instance="g1"}': "100x30",
        },
        minute=10,
    ),
    Case(
        alert="SemelNoGateway",
        series={GATEWAY_INFO: "1x30 stale", gateway("gateways"): "1x30 stale"},
        minute=40,
    ),
    Case(
        alert="",
        name="a gateway that was taken away for good",
        series={GATEWAY_INFO: "1x30 stale", gateway("gateways"): "1x30 stale"},
        minute=100,
    ),
    Case(
        alert="",
        name="a gateway of a newer version in the place of an older one",
        series={GATEWAY_INFO: "1x30 stale", gateway("info", 'version="0.2.0"'): "_x30 1x60"},
        minute=40,
    ),
    of_gateway("SemelGatewayGone", "gateways", "3x30 2x60", 40),
    of_gateway("", "gateways", "3x30 2x90", 100),
    Case(
        alert="SemelGatewaysDisagree",
        series={gateway("gateways"): "2x60", OTHER_GATEWAY: "1x60"},
        minute=20,
    ),
    Case(alert="SemelGatewayProduceSlow", series=produce_requests("0+1x60", "0+100x60"), minute=30),
    of_gateway("SemelGatewayFull", "request_bytes", "120000000x60", 20),
    Case(
        alert="SemelGatewayRebalancesOften",
        series={
            gateway("rebalances_total"): "0+2x90",
            gateway("groups"): "2x90",
        },
        minute=60,
    ),
    of_gateway("SemelGatewayClientsBroken", "broken_connections_total", "0+60x60", 30),
    of_gateway("SemelConnectionsRefused", "refused_connections_total", "0+5x60", 20),
    of_node(
        "SemelCertificateExpires",
        "certificate_expiry_timestamp_seconds",
        "864000x100",
        90,
        'certificate="own"',
    ),
    Case(
        alert="SemelCertificateExpiresSoon",
        also=("SemelCertificateExpires",),
        series={
            f"semel_controller_certificate_expiry_timestamp_seconds{{{CONTROLLER},"
            'certificate="ca"}': "90000x100"
        },
        minute=90,
    ),
    of_node("SemelRightsOld", "rights_age_seconds", "600x30", 10),
    of_node("SemelCallsDenied", "refused_calls_total", "0+120x60", 20),
    of_controller("SemelLoginsRefused", "refused_logins_total", "0+120x60", 15),
    of_node("SemelAuditLost", "audit_dropped_lines_total", "0+1x60", 30),
    of_controller("SemelAuditLost", "audit_dropped_lines_total", "0+1x60", 30),
    of_node("SemelClockOff", "clock_timestamp_seconds", "10+60x30", 10),
    of_controller("SemelClockOff", "clock_timestamp_seconds", "-10+60x30", 10),
    Case(
        alert="SemelWebFails",
        series={'semel_web_requests_total{job="semel-web",screen="topics",status="500"}': "0+1x60"},
        minute=30,
    ),
)
