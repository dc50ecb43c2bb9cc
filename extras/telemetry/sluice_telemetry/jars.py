"""The jar of the receiver in brokers, whose path `python -m sluice_telemetry.jars` prints, and its classes."""

from pathlib import Path

from sluice.jvm.jars import JarSet, built_jar

_FOLDER = Path(__file__).resolve().parent

TELEMETRY_JARS = JarSet.named("telemetry", "scripts.java.build", folder=_FOLDER)
"""Kafka's own jar, for the compiler."""

BUILT = _FOLDER / "built"
"""The folder of the jar: the wheel has it, and ./scripts/setup makes that of a checkout."""

JAR_NAME = "sluice-kafka-telemetry.jar"

RECEIVER_CLASS = "sluice.telemetry.SluiceTelemetryExporter"
"""For a broker's `metric.reporters`, from Kafka 4.2."""

OLD_RECEIVER_CLASS = "sluice.telemetry.SluiceClientTelemetry"
"""The same for Kafka 3.8 to 4.1, and until 5.0."""


def telemetry_jar() -> Path:
    """The jar. Raises JarError where it was not built."""
    return built_jar(JAR_NAME, BUILT, "sluice-kafka-telemetry")


if __name__ == "__main__":
    print(telemetry_jar())
