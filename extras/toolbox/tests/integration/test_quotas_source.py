"""The doctor beside `quotas.source: kafka` on a real broker."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.cli.errors import CheckError
from sluice.configs.settings import Properties
from sluice.kafka_io.client import connect
from sluice.state.quotas.kinds import QuotaKind
from sluice.streaming.checkpoint.folder import Checkpoint, locked
from sluice_lab.testbed.quotas_without_job import AlteringAdmin
from sluice_reading.quotas_admin import QuotasAdmin
from sluice_toolbox.checks import check_quotas_source
from sluice_toolbox.cluster_quotas import read_cluster_quotas
from tests.builders import DEFAULTS, changed, quota
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.group("broker_quotas")]

KIND = QuotaKind.PRODUCER_BYTE_RATE
ORDERS = quota(QuotaKind.TOPIC_PRODUCER_BYTE_RATE, 1e6, topic="orders")


def test_the_doctor_compares_the_cluster_with_the_table(kafka_broker: str, tmp_path: Path) -> None:
    """A difference is a failure only where a job should have mirrored it."""
    settings = replace(DEFAULTS, kafka=Properties({"bootstrap.servers": kafka_broker}))
    settings = changed(settings, "quotas", source="kafka")
    settings = changed(settings, "enforce", checkpoint=str(tmp_path / "checkpoint"))
    settings = changed(settings, "delta", quotas=str(tmp_path / "quotas"))
    table = QuotasAdmin(settings.delta.quotas)
    table.create([quota(KIND, 1.0, user="mirror-bob"), ORDERS], "test", datetime.now(UTC))
    with connect(AlteringAdmin, settings.kafka) as admin:
        admin.alter({"user": "mirror-alice"}, {KIND: 1024.0}, remove=False)
        try:
            eventually(lambda: len(read_cluster_quotas(settings.kafka)) == 1, 120)

            found = "kafka, with 1 quotas of users and client-ids"
            differs = f"{found}; against version 0 of the table: 1 added, 0 changed, 1 removed"
            assert check_quotas_source(settings) == f"{differs}; the job mirrors them"
            with (
                locked(Checkpoint(settings.enforce.checkpoint)),
                pytest.raises(CheckError, match="should have mirrored"),
            ):
                check_quotas_source(settings)
            table.alter(lambda _: [quota(KIND, 1024.0, user="mirror-alice"), ORDERS], "test", datetime.now(UTC))
            assert check_quotas_source(settings) == f"{found}; version 1 of the table has the same"
        finally:
            admin.alter({"user": "mirror-alice"}, {KIND: 1024.0}, remove=True)
