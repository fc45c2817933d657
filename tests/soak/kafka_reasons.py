"""Why a test of Kafka's clients does not pass before the gateway.

Keys are `JUDGE: TEST`, where * stands for anything. A reason that no longer is one makes
`./run soak kafka-clients` fail, as a test does that fails without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.soak import kafka_franz, kafka_python, kafka_sarama

_OWN_BROKER: Final = "it starts a broker of its own"
_ABSENT: Final = "the API is not served: nothing here is like it"
_NEWER: Final = "for newer versions of Kafka than the one whose requests are served"
_BEFORE_COMMIT: Final = "it wants offsets of records before the commit, which gives them theirs"
_SETTINGS: Final = "gateways have no settings, and topics do not tell which of theirs are defaults"
_BY_STORING: Final = (
    "lookups by time go by when a message was stored, not by what its producer said"
)
_PLAIN: Final = "what consumers get is not compressed unless the gateway is told so"
_CONSUMER_GROUPS: Final = "groups of Kafka's newer protocol (KIP-848) are not served"
_SHARE_GROUPS: Final = "share groups are not served"
_BEYOND: Final = "it commits an offset beyond the end of an empty partition"
_PLACED: Final = "it names brokers for partitions, and the cluster places queues"
_NUMBERED: Final = "it wants brokers numbered from 1 on, and gateways have other numbers"
_DOCKER: Final = "it runs programs in a broker's container"
_CODEC: Final = "kafka-python needs a package for the codec that the environment has not"

_KAFKA_PYTHON: Final[Mapping[str, str]] = {
    "consumer: test_kafka_version_infer": (
        "it takes the gateway for Kafka 2.4 because of Produce 8, and the tests are run for 2.3"
    ),
    "consumer: test_kafka_consumer_unsupported_encoding": _PLAIN,
    "consumer: test_kafka_consumer_offsets_for_time": _BY_STORING,
    "consumer: test_kafka_consumer_offsets_for_time_old": "for versions of Kafka before 0.10.1",
    "producer: test_end_to_end[snappy]": _CODEC,
    "producer: test_end_to_end[zstd]": _CODEC,
    "producer: test_kafka_producer_proper_record_metadata[snappy]": _CODEC,
    "producer: test_kafka_producer_proper_record_metadata[zstd]": _CODEC,
    "producer: test_transactional_producer_offsets": _BEYOND,
    "admin: test_create_describe_delete_acls": "rules are the cluster's, not Kafka's ACLs",
    "admin: test_describe_configs_broker_resource_returns_configs": _SETTINGS,
    "admin: test_describe_configs_topic_resource_returns_configs": _SETTINGS,
    "admin: test_describe_configs_mixed_resources_returns_configs": _SETTINGS,
    "admin: test_delete_records": "it wants what is left of all partitions by one poll",
    "admin: test_create_partitions": _PLACED,
    "admin: test_elect_leaders": _ABSENT,
    "admin: test_describe_log_dirs": _ABSENT,
    "admin: test_alter_replica_log_dirs": _ABSENT,
    "admin: test_describe_metadata_quorum": _NEWER,
    "admin: test_alter_partition_reassignments": _NEWER,
    "admin: test_list_partition_reassignments": _NEWER,
    "admin: test_describe_topic_partitions": _NEWER,
    "admin: test_describe_topic_partitions_pagination": _NEWER,
    "admin: test_list_config_resources": _NEWER,
    "sasl: *": _OWN_BROKER,
    "TestSSLConnection: *": _OWN_BROKER,
}

_FRANZ_GO: Final[Mapping[str, str]] = {
    "Test848RegexBrokerResolves": _CONSUMER_GROUPS,
    "TestGroupETL/*848*": _CONSUMER_GROUPS,
    "TestGroupSimple/848": _CONSUMER_GROUPS,
    "TestShareGroup*": _SHARE_GROUPS,
    "TestConsumeRegexShareSkipsInternal": _SHARE_GROUPS,
    "TestConsumeMaxDecompressBatchBytes": _PLAIN,
    "TestPooling": _PLAIN,
    "TestConsumeRegex": "it wants the topic `__consumer_offsets`, which there is none of",
    "TestIssueFetchLargerThanBrokerMaxReadBytes": "a message has 1 MiB at most, and it wants 10",
    "TestTxnEtl": _BEFORE_COMMIT,
    "TestTxnEtl/*848*": _CONSUMER_GROUPS,
}

_SARAMA: Final[Mapping[str, str]] = {
    "TestFuncAdminQuotas": "quotas are the cluster's, not Kafka's",
    "TestFuncAdminListConsumerGroupOffsets": _BEYOND,
    "TestFuncAdminListConsumerGroupOffsetsBatch": _BEYOND,
    "TestFuncAdminAlterConsumerGroupOffsets": _BEYOND,
    "TestFuncAdminDeleteGroup": _BEYOND,
    "TestFuncConsumerGroupOffsetDeletion": _BEYOND,
    "TestFuncOffsetManager": _BEYOND,
    "TestFuncAdminListOffsets": _PLACED,
    "TestFuncAdminDeleteRecords": _PLACED,
    "TestFuncAdminAlterPartitionReassignments": _PLACED,
    "TestFuncAdminDescribeLogDirs": _ABSENT,
    "TestFuncAdminElectLeadersV1": _ABSENT,
    "TestFuncAdminUpdateFeatures": _ABSENT,
    "TestFuncDescribeProducers": _ABSENT,
    "TestFuncDescribeTransactions": _ABSENT,
    "TestFuncListTransactions": _ABSENT,
    "TestFuncAdminDescribeConfig": _NUMBERED,
    "TestFuncAdminIncrementalAlterConfigs": _NUMBERED,
    "TestFuncAdminNetworkErrorClosesControllerConnection": _NUMBERED,
    "TestFuncAdminAlterConfig": "topics have no `segment.ms`",
    "TestConsumerFetchFollowerFailover": "partitions have no followers to read from",
    "TestFuncProducingNoResponse/TestFuncProducingNoResponse-v4.0.0": (
        "it sends requests of Kafka 4.0 without asking which are served"
    ),
    "TestFuncIdempotentBufferedSequence": "it reads the log of a broker in a container",
    "TestReadOnlyAndAllCommittedMessages": "sarama leaves it out always",
    "TestFuncJavaInteropCooperativeRebalance": _DOCKER,
    "TestJava*": _DOCKER,
}

REASONS: Final[Mapping[str, str]] = {
    **{f"{kafka_python.JUDGE}: {test}": why for test, why in _KAFKA_PYTHON.items()},
    **{f"{kafka_franz.JUDGE}: {test}": why for test, why in _FRANZ_GO.items()},
    **{f"{kafka_sarama.JUDGE}: {test}": why for test, why in _SARAMA.items()},
}
