"""The topics of a job as its cluster has them."""

from collections.abc import Mapping

from kafka import KafkaAdminClient

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.topic_needs import lease_needs, needs
from sluice.kafka_io.topics import Refused, differing_topics
from sluice.state.troubles import TopicsSeen


def topics_seen(
    topics: TopicSettings, kafka: Mapping[str, str], refused: Refused, *, in_shared_storage: bool = False
) -> TopicsSeen:
    """The topics that are missing and those that differ. Takes `refused` and raises as `differing_topics`."""
    wanted = needs(topics) | (lease_needs(topics) if in_shared_storage else {})
    with connect(KafkaAdminClient, kafka) as admin:
        existing = set(admin.list_topics())
    found = differing_topics(topics, kafka, in_shared_storage=in_shared_storage, refused=refused)
    return TopicsSeen([name for name in wanted if name not in existing], {each.text: each.is_fatal for each in found})
