"""The id of the requests topic on a real broker: another one when the topic is made again."""

from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from sluice.configs.settings import Properties, Settings, load_settings
from sluice.kafka_io.topic_reader import TopicReader
from sluice.kafka_io.topics import ensure_topics, topic_id_now
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.checkpoint.origin import charged_topic_id
from sluice.streaming.enforce.requests_topic import RequestsTopicWatch
from sluice.streaming.errors import CheckpointError
from tests.builders import changed
from tests.deciding_side import own_topics
from tests.waiting import eventually

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(kafka_broker: str, tmp_path: Path) -> Settings:
    defaults = load_settings(environment={})
    enforce = replace(defaults.enforce, checkpoint=str(tmp_path))
    kafka = Properties({"bootstrap.servers": kafka_broker})
    return replace(defaults, topics=own_topics(partitions=1), enforce=enforce, kafka=kafka)


def made_again(settings: Settings) -> None:
    with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
        admin.delete_topics([settings.topics.requests])
        eventually(lambda: settings.topics.requests not in admin.list_topics())
    ensure_topics(settings.topics, settings.kafka)


def has_charged(settings: Settings) -> None:
    """Let the checkpoint have a micro-batch."""
    checkpoint = Checkpoint(settings.enforce.checkpoint)
    checkpoint.spark.write("metadata", b"{}")
    checkpoint.spark.write("offsets/0", b"v1\n{}\n{}\n")


def test_a_topic_that_is_made_again_has_another_id(settings: Settings) -> None:
    """The readers of records see the same."""
    topic = settings.topics.requests
    with KafkaAdminClient(bootstrap_servers=settings.kafka["bootstrap.servers"]) as admin:
        assert topic_id_now(admin, topic) is None
        ensure_topics(settings.topics, settings.kafka)
        first = topic_id_now(admin, topic)
        made_again(settings)
        second = topic_id_now(admin, topic)

    assert len({first, second, None}) == 3
    with TopicReader(settings.kafka, topic) as reader:
        assert reader.topic_id() == second


def test_a_job_does_not_start_on_another_topic_than_its_checkpoint_has_charged(settings: Settings) -> None:
    """Unless that is no failure, or nothing was charged; a running job notices too."""
    ensure_topics(settings.topics, settings.kafka)
    watch = RequestsTopicWatch(settings)
    watch.begin()
    first = watch.id
    made_again(settings)
    watch.begin()
    assert watch.id not in {first, None}
    has_charged(settings)
    watch.begin()
    with watch.service():
        before = watch.id
        made_again(settings)
        eventually(lambda: watch.id != before)

    with pytest.raises(CheckpointError, match=f"topic {settings.topics.requests} is another one"):
        RequestsTopicWatch(settings).begin()
    RequestsTopicWatch(changed(settings, "enforce", fail_on_data_loss=False)).begin()

    assert charged_topic_id(Checkpoint(settings.enforce.checkpoint)) == watch.id
