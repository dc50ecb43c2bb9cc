"""franz-go's own tests that need brokers, those of its ETL through groups and transactions included."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from scripts.scenarios.peers.suite import Outcomes, Suite, run_go
from scripts.testbed.go_tests import go_tests

_MODULE, _PACKAGE = "github.com/twmb/franz-go", "./pkg/kgo"

_TESTS = (
    "Test848RegexBrokerResolves",
    "TestAddRemovePartitions",
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeMaxDecompressBatchBytes",
    "TestConsumeRegex",
    "TestConsumeRegexShareSkipsInternal",
    "TestConsumeTopicRetrieval",
    "TestConsumeTopicRetrieval_Many",
    "TestDirectPartitionPurge",
    "TestGroupETL",
    "TestGroupSimple",
    "TestHookPollStart",
    "TestIssue1034",
    "TestIssue325",
    "TestIssue337",
    "TestIssue434",
    "TestIssue523",
    "TestIssue648",
    "TestIssue769",
    "TestIssue810",
    "TestIssue831",
    "TestIssue865",
    "TestIssueFetchLargerThanBrokerMaxReadBytes",
    "TestIssueProduceBrokerTooOldFailsRecords",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssue489",
    "TestPauseIssueOct2023",
    "TestPing",
    "TestPooling",
    "TestShareGroup",
    "TestShareGroupAckOnClose",
    "TestShareGroupETL",
    "TestShareGroupOffsetsAdmin",
    "TestTxnEtl",
    "TestUnknownGroupOffsetFetchPinned",
)
"""The tests of 1.22.3 that make clients; all others need no broker."""


class FranzGo(Suite):
    """`go test ./pkg/kgo` of franz-go, on one broker as its own CI has it."""

    client = "franz-go"
    properties: ClassVar[Mapping[str, str]] = {
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.share.delivery.count.limit": "10",
    }

    def prepare(self) -> None:
        self._tests = go_tests(_MODULE, _PACKAGE)

    def run(self, servers: str, log: Path, tests: str | None) -> Outcomes:
        environment = os.environ | {"KGO_SEEDS": servers, "KGO_TEST_RF": "1", "KGO_LOG_LEVEL": "none"}
        environment |= {"KGO_TEST_RECORDS": os.environ.get("KGO_TEST_RECORDS", "10000")}
        names = tests or f"^({'|'.join(_TESTS)})$"
        command = [str(self._tests.program), "-test.v", "-test.timeout=20m", f"-test.run={names}"]
        return run_go(command, self._tests.folder, environment, log)
