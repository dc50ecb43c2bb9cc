"""The topics of a job as its cluster has them."""

from collections.abc import Mapping

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from sluice.kafka_io.client import TopicSettings, connect
from sluice.kafka_io.topic_needs import lease_needs, needs
from sluice.kafka_io.topics import Refused, differing_topics
from sluice.state.errors import SluiceError
from sluice.state.troubles import TopicsSeen


def topics_seen(
    topics: TopicSettings, kafka: Mapping[str, str], refused: Refused, *, in_shared_storage: bool = False
) -> TopicsSeen:
    """The topics that are missing and those that differ. Takes `refused` as `differing_topics`.

    Raises as that does, unless a topic is missing: what makes the comparison fail hides it from nobody.
    """
    wanted = needs(topics) | (lease_needs(topics) if in_shared_storage else {})
    with connect(KafkaAdminClient, kafka) as admin:
        existing = set(admin.list_topics())
    missing = [name for name in wanted if name not in existing]
    try:
        found = differing_topics(topics, kafka, in_shared_storage=in_shared_storage, refused=refused)
    except (KafkaError, SluiceError, OSError):
        if not missing:
            raise
        found = []
    return TopicsSeen(missing, {each.text: each.is_fatal for each in found})
