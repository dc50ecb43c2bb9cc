"""Clients have through the proxy and with the plugin what they have at a broker alone: two cells of the matrix."""

import pytest

from sluice_lab.scenarios.peers.client_table import CLIENTS
from sluice_lab.scenarios.peers.clients import Way, differences, is_expected, run_matrix

pytestmark = [pytest.mark.kafka, pytest.mark.long]


def test_a_client_has_on_all_ways_the_same_records_versions_and_charges() -> None:
    newest = {client.library: client for client in CLIENTS}
    found = run_matrix([newest["librdkafka"], newest["java"]], ["zstd"])

    assert len(found) == 2
    for outcomes in found.values():
        assert "records=100" in outcomes[Way.DIRECT].said
        assert outcomes[Way.PROXY].charged["Produce"] == outcomes[Way.PROXY].metered["Produce"] > 0
        for way in (Way.PROXY, Way.PLUGIN):
            assert [each for each in differences(outcomes, way) if not is_expected("zstd", way, each)] == []
