"""`sluice topics --dry-run`: the lines for an administrator."""

from sluice.kafka_io.topic_needs import creation_line, needs
from tests.builders import DEFAULTS
from tests.commands import invoke


def test_a_dry_run_prints_the_lines_that_make_the_topics() -> None:
    """For an administrator, so no broker is asked."""
    lines = invoke("topics", "--dry-run", "--bootstrap-servers", "h:9092").output.splitlines()

    assert lines == [creation_line("h:9092", name, each, 1) for name, each in needs(DEFAULTS.topics).items()]
    assert lines[0].startswith(
        "kafka-topics.sh --bootstrap-server h:9092 --create --topic quota-requests --partitions 4"
        " --replication-factor 1 --config cleanup.policy=delete --config retention.ms=86400000 --config "
    )
