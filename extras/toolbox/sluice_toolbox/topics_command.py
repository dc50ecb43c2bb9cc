"""`sluice topics`: makes the topics that are missing, before anybody writes to them."""

from collections.abc import Iterator
from typing import Annotated

import typer

from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.configs.settings import Settings
from sluice.kafka_io.errors import KafkaUnavailableError, UnfitTopicError
from sluice.kafka_io.topic_needs import creation_line, lease_needs, needs
from sluice.process.format import error_line


def topics(
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the kafka-topics.sh lines for an administrator; ask no broker.")
    ] = False,
) -> None:
    """Make Sluice's topics that are missing, and compare the others with what it needs.

    Brokers with the plugin, proxies and gateways write to them, so make them first.
    """
    settings = job_settings(config, bootstrap_servers)
    for line in topic_lines(settings) if dry_run else made_topics(settings):
        typer.echo(line)


def topic_lines(settings: Settings) -> Iterator[str]:
    """The command lines that make the topics, where a login other than Sluice's has to do it."""
    topics = settings.topics
    wanted = needs(topics) | (lease_needs(topics) if _in_shared_storage(settings) else {})
    for name, each in wanted.items():
        yield creation_line(settings.kafka["bootstrap.servers"], name, each, topics.replicas)


def made_topics(settings: Settings) -> Iterator[str]:
    """Make the topics that are missing; a line for each of them, and for each that differs from what the job needs.

    Raises UnfitTopicError, after all lines, if one loses records; TopicCreationError and KafkaUnavailableError.
    """
    from kafka.errors import KafkaError

    from sluice.kafka_io.topics import differing_topics, ensure_lease_topic, ensure_topics

    topics, kafka, in_shared_storage = settings.topics, settings.kafka, _in_shared_storage(settings)
    made = ensure_topics(topics, kafka) + (ensure_lease_topic(topics, kafka) if in_shared_storage else [])
    yield from (f"made {name}" for name in made)
    try:
        found = differing_topics(topics, kafka, in_shared_storage=in_shared_storage)
    except KafkaError as error:
        raise KafkaUnavailableError(f"topics can't be compared with what is needed: {error_line(error)}") from error
    yield from (f"warn: {each.text}" for each in found if not each.is_fatal)
    if fatal := [each.text for each in found if each.is_fatal]:
        raise UnfitTopicError("; ".join(fatal))
    if not made and not found:
        yield "all topics are there, as the job needs them"


def _in_shared_storage(settings: Settings) -> bool:
    from sluice.streaming.checkpoint.folder import Checkpoint

    return not Checkpoint(settings.enforce.checkpoint).is_local
