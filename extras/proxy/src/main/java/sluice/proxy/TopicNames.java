package sluice.proxy;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchRequestData;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataRequestData.MetadataRequestTopic;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.message.ShareFetchRequestData;
import org.apache.kafka.common.message.ShareFetchResponseData;
import org.apache.kafka.common.protocol.ApiMessage;

/**
 * The names of topics by the ids that newer fetches have, learned from the cluster. An id never gets another name.
 *
 * <p>Safe for any thread.
 */
final class TopicNames {
    private static final int MAX_NAMES = 100_000;

    private final Map<Uuid, String> names = new ConcurrentHashMap<>();

    /** The name; null while it isn't known. */
    String of(Uuid id) {
        return names.get(id);
    }

    /**
     * What to ask the cluster for, so that the topics of a fetch are known; null if nothing. A session's later requests
     * name none, so the response may be the first to tell that a topic is read; one with an error tells nothing.
     */
    MetadataRequestData question(ApiMessage message) {
        List<MetadataRequestTopic> unknown = new ArrayList<>();
        if (message instanceof FetchRequestData fetch) {
            fetch.topics().forEach(topic -> addUnknown(topic.topicId(), unknown));
        } else if (message instanceof ShareFetchRequestData fetch) {
            fetch.topics().forEach(topic -> addUnknown(topic.topicId(), unknown));
        } else if (message instanceof FetchResponseData fetched) {
            fetched.responses().stream()
                    .filter(topic -> topic.partitions().stream().anyMatch(part -> part.errorCode() == 0))
                    .forEach(topic -> addUnknown(topic.topicId(), unknown));
        } else if (message instanceof ShareFetchResponseData fetched) {
            fetched.responses().stream()
                    .filter(topic -> topic.partitions().stream().anyMatch(part -> part.errorCode() == 0))
                    .forEach(topic -> addUnknown(topic.topicId(), unknown));
        }
        return unknown.isEmpty()
                ? null
                : new MetadataRequestData().setTopics(unknown).setAllowAutoTopicCreation(false);
    }

    private void addUnknown(Uuid id, List<MetadataRequestTopic> unknown) {
        if (!id.equals(Uuid.ZERO_UUID) && !names.containsKey(id)) {
            unknown.add(new MetadataRequestTopic().setName(null).setTopicId(id));
        }
    }

    /** Takes over what the cluster has answered. */
    void learn(MetadataResponseData metadata) {
        if (names.size() >= MAX_NAMES) {
            names.clear(); // topics that were deleted: those in use are asked for again
        }
        for (var topic : metadata.topics()) {
            if (topic.name() != null && !topic.topicId().equals(Uuid.ZERO_UUID)) {
                names.put(topic.topicId(), topic.name());
            }
        }
    }
}
