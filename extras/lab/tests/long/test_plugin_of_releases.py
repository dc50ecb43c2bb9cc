"""The plugin compiles without a warning against the oldest and newest Kafka, and what 5.0 leaves of its callback."""

from pathlib import Path

import pytest

from scripts.java.build import PLUGIN
from scripts.java.compiler import compile_java
from sluice.jvm.jars import JarSet
from sluice_demo.jars import BROKER_JARS
from sluice_lab.testbed.jars import NEW_BROKER_JARS, OLD_BROKER_JARS

INTERFACE_OF_5 = """
package org.apache.kafka.server.quota;

import java.util.Map;
import org.apache.kafka.common.Configurable;
import org.apache.kafka.common.security.auth.KafkaPrincipal;

public interface ClientQuotaCallback extends Configurable {
    Map<String, String> quotaMetricTags(ClientQuotaType type, KafkaPrincipal principal, String clientId);
    Double quotaLimit(ClientQuotaType type, Map<String, String> metricTags);
    void updateQuota(ClientQuotaType type, ClientQuotaEntity entity, double newValue);
    void removeQuota(ClientQuotaType type, ClientQuotaEntity entity);
    boolean quotaResetRequired(ClientQuotaType type);
    void close();
}
"""
"""The callback without what KIP-1200 deprecates, as nothing of Kafka 5.0 is published yet."""

SOURCES = [source for folder in PLUGIN.sources for source in folder.rglob("*.java")]


@pytest.mark.long
@pytest.mark.parametrize("jars", [OLD_BROKER_JARS, BROKER_JARS, NEW_BROKER_JARS], ids=lambda jars: jars.name)
def test_the_plugin_uses_nothing_that_a_kafka_deprecates(tmp_path: Path, jars: JarSet) -> None:
    compile_java(SOURCES, jars.paths(), tmp_path, PLUGIN.release)  # its warnings are errors


@pytest.mark.long
def test_the_plugin_overrides_nothing_that_kafka_5_removes(tmp_path: Path) -> None:
    interface = tmp_path / "ClientQuotaCallback.java"
    interface.write_text(INTERFACE_OF_5)
    compile_java([interface, *SOURCES], NEW_BROKER_JARS.paths(), tmp_path, PLUGIN.release)
