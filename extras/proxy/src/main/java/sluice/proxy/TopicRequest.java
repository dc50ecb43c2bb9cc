package sluice.proxy;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.CreatePartitionsRequestData;
import org.apache.kafka.common.message.CreatePartitionsRequestData.CreatePartitionsTopic;
import org.apache.kafka.common.message.CreatePartitionsResponseData;
import org.apache.kafka.common.message.CreatePartitionsResponseData.CreatePartitionsTopicResult;
import org.apache.kafka.common.message.CreateTopicsRequestData;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopic;
import org.apache.kafka.common.message.CreateTopicsResponseData;
import org.apache.kafka.common.message.CreateTopicsResponseData.CreatableTopicResult;
import org.apache.kafka.common.message.DeleteTopicsRequestData;
import org.apache.kafka.common.message.DeleteTopicsRequestData.DeleteTopicState;
import org.apache.kafka.common.message.DeleteTopicsResponseData;
import org.apache.kafka.common.message.DeleteTopicsResponseData.DeletableTopicResult;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataRequestData.MetadataRequestTopic;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.message.MetadataResponseData.MetadataResponseTopic;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Errors;

/**
 * A request that creates, adds or deletes partitions (KIP-599), whatever its API. Topics that are refused are taken out of
 * it, and put into the response with an error. A topic that is named by its id goes by `id:` and the id's text: a client may
 * name topics like ids, but no name has a colon.
 */
abstract class TopicRequest {
    private static final short ERROR = Errors.THROTTLING_QUOTA_EXCEEDED.code();
    private static final String MESSAGE = Errors.THROTTLING_QUOTA_EXCEEDED.message();

    private static final String BY_ID = "id:";

    private static final Set<Errors> MAYBE_DONE = EnumSet.of(
            Errors.NONE, Errors.REQUEST_TIMED_OUT, Errors.NETWORK_EXCEPTION, Errors.UNKNOWN_SERVER_ERROR);

    /** The first version that understands a refusal. */
    final int strictSince;

    /** Whether nothing is to be changed. */
    final boolean isValidation;

    /** Whether topics are made besides, for a client that asks about them. */
    final boolean isAutomatic;

    private final Supplier<ApiMessage> emptyResponse;

    private TopicRequest(
            int strictSince, boolean isValidation, boolean isAutomatic, Supplier<ApiMessage> emptyResponse) {
        this.strictSince = strictSince;
        this.isValidation = isValidation;
        this.isAutomatic = isAutomatic;
        this.emptyResponse = emptyResponse;
    }

    /** The request in this message; null if it is of another API. `made` are the topics that its connection has made so far. */
    static TopicRequest of(ApiMessage message, Set<String> made) {
        if (message instanceof CreateTopicsRequestData create) {
            return new Create(create);
        }
        if (message instanceof CreatePartitionsRequestData add) {
            return new Add(add);
        }
        if (message instanceof DeleteTopicsRequestData delete) {
            return new Delete(delete);
        }
        return message instanceof MetadataRequestData ask && Automatic.makes(ask) ? new Automatic(ask, made) : null;
    }

    /** What to ask the cluster for, so that {@link #partitions} is known; null if nothing. */
    MetadataRequestData question() {
        return null;
    }

    /** The partitions to create, add or delete, by topic, given what the cluster says of them. */
    abstract Map<String, Integer> partitions(MetadataResponseData metadata);

    /** Takes topics out of the request. */
    abstract void remove(Set<String> refused);

    /** How many partitions each topic has, by name and by id. */
    private static Map<String, Integer> present(MetadataResponseData metadata) {
        Map<String, Integer> present = new LinkedHashMap<>();
        for (var topic : metadata.topics()) {
            if (topic.name() != null) {
                present.put(topic.name(), topic.partitions().size());
            }
            present.put(named(topic.topicId()), topic.partitions().size());
        }
        return present;
    }

    /** The topics for which a broker answers that nothing was done; after a timeout that isn't known. */
    static Set<String> undone(ApiMessage response) {
        Map<String, Boolean> isUndone = new LinkedHashMap<>();
        if (response instanceof CreateTopicsResponseData created) {
            created.topics().forEach(each -> noteUndone(isUndone, each.name(), each.errorCode()));
        } else if (response instanceof CreatePartitionsResponseData added) {
            added.results().forEach(each -> noteUndone(isUndone, each.name(), each.errorCode()));
        } else if (response instanceof DeleteTopicsResponseData deleted) {
            for (DeletableTopicResult each : deleted.responses()) {
                noteUndone(isUndone, each.name(), each.errorCode());
                noteUndone(isUndone, named(each.topicId()), each.errorCode());
            }
        } else if (response instanceof MetadataResponseData described) {
            described.topics().forEach(each -> noteUndone(isUndone, each.name(), Automatic.outcome(each.errorCode())));
        }
        isUndone.values().removeIf(is -> !is);
        return isUndone.keySet();
    }

    /** One that a client has named twice, as a name may look like an id here, is undone if nothing was done of either. */
    private static void noteUndone(Map<String, Boolean> isUndone, String topic, short code) {
        isUndone.merge(topic, !MAYBE_DONE.contains(Errors.forCode(code)), Boolean::logicalAnd);
    }

    private static String named(Uuid topicId) {
        return BY_ID + topicId;
    }

    /** A response in which these topics are refused, and no others are. */
    ApiMessage refusal(Set<String> refused) {
        ApiMessage response = emptyResponse.get();
        refuse(response, refused);
        return response;
    }

    /** Adds refused topics to a response. */
    static void refuse(ApiMessage response, Set<String> refused) {
        for (String topic : refused) {
            if (response instanceof CreateTopicsResponseData created) {
                created.topics().add(new CreatableTopicResult().setName(topic).setErrorCode(ERROR).setErrorMessage(MESSAGE));
            } else if (response instanceof CreatePartitionsResponseData added) {
                added.results()
                        .add(new CreatePartitionsTopicResult().setName(topic).setErrorCode(ERROR).setErrorMessage(MESSAGE));
            } else if (response instanceof DeleteTopicsResponseData deleted) {
                deleted.responses().add(Delete.result(topic).setErrorCode(ERROR).setErrorMessage(MESSAGE));
            } else if (response instanceof MetadataResponseData described) {
                described.topics().add(new MetadataResponseTopic().setName(topic).setErrorCode(Automatic.REFUSED));
            }
        }
    }

    private static final class Create extends TopicRequest {
        private final CreateTopicsRequestData message;

        Create(CreateTopicsRequestData message) {
            super(6, message.validateOnly(), false, CreateTopicsResponseData::new);
            this.message = message;
        }

        /** A topic that leaves the number to the cluster counts as one partition. */
        @Override
        Map<String, Integer> partitions(MetadataResponseData metadata) {
            Map<String, Integer> partitions = new LinkedHashMap<>();
            for (CreatableTopic topic : message.topics()) {
                int assigned = topic.assignments().size();
                partitions.put(topic.name(), assigned > 0 ? assigned : Math.max(1, topic.numPartitions()));
            }
            return partitions;
        }

        @Override
        void remove(Set<String> refused) {
            message.topics().removeIf(topic -> refused.contains(topic.name()));
        }
    }

    private static final class Add extends TopicRequest {
        private final CreatePartitionsRequestData message;

        Add(CreatePartitionsRequestData message) {
            super(3, message.validateOnly(), false, CreatePartitionsResponseData::new);
            this.message = message;
        }

        @Override
        MetadataRequestData question() {
            List<MetadataRequestTopic> topics = new ArrayList<>();
            message.topics().forEach(topic -> topics.add(new MetadataRequestTopic().setName(topic.name())));
            return new MetadataRequestData().setTopics(topics).setAllowAutoTopicCreation(false);
        }

        /** A topic that the cluster doesn't know yet counts as if it had none. */
        @Override
        Map<String, Integer> partitions(MetadataResponseData metadata) {
            Map<String, Integer> present = present(metadata);
            Map<String, Integer> partitions = new LinkedHashMap<>();
            for (CreatePartitionsTopic topic : message.topics()) {
                partitions.put(topic.name(), Math.max(0, topic.count() - present.getOrDefault(topic.name(), 0)));
            }
            return partitions;
        }

        @Override
        void remove(Set<String> refused) {
            message.topics().removeIf(topic -> refused.contains(topic.name()));
        }
    }

    private static final class Delete extends TopicRequest {
        private final DeleteTopicsRequestData message;

        Delete(DeleteTopicsRequestData message) {
            super(5, false, false, DeleteTopicsResponseData::new);
            this.message = message;
        }

        static DeletableTopicResult result(String topic) {
            DeletableTopicResult result = new DeletableTopicResult().setName(topic);
            if (topic.startsWith(BY_ID)) {
                try {
                    result.setTopicId(Uuid.fromString(topic.substring(BY_ID.length()))).setName(null);
                } catch (IllegalArgumentException error) { // a name that is none
                    return result;
                }
            }
            return result;
        }

        @Override
        MetadataRequestData question() {
            List<MetadataRequestTopic> topics = new ArrayList<>();
            message.topicNames().forEach(topic -> topics.add(new MetadataRequestTopic().setName(topic)));
            for (DeleteTopicState topic : message.topics()) {
                topics.add(new MetadataRequestTopic().setName(topic.name()).setTopicId(topic.topicId()));
            }
            return new MetadataRequestData().setTopics(topics).setAllowAutoTopicCreation(false);
        }

        @Override
        Map<String, Integer> partitions(MetadataResponseData metadata) {
            Map<String, Integer> present = present(metadata);
            Map<String, Integer> partitions = new LinkedHashMap<>();
            message.topicNames().forEach(topic -> partitions.merge(topic, present.getOrDefault(topic, 1), Math::max));
            for (DeleteTopicState topic : message.topics()) {
                partitions.merge(nameOf(topic), present.getOrDefault(nameOf(topic), 1), Math::max);
            }
            return partitions;
        }

        @Override
        void remove(Set<String> refused) {
            message.topicNames().removeAll(refused);
            message.topics().removeIf(topic -> refused.contains(nameOf(topic)));
        }

        private static String nameOf(DeleteTopicState topic) {
            return topic.name() == null ? named(topic.topicId()) : topic.name();
        }
    }

    /**
     * Metadata, for which a broker with `auto.create.topics.enable` makes the topics that are missing. It asks a controller for
     * that, and answers meanwhile that they are unknown, also if the controller refuses: so does a proxy.
     */
    private static final class Automatic extends TopicRequest {
        static final short REFUSED = Errors.UNKNOWN_TOPIC_OR_PARTITION.code();

        private static final int MAX_MADE = 1_000;

        private final MetadataRequestData message;
        private final Set<String> made; // a client asks again until a topic is there, which may never be
        private final Set<String> missing = new LinkedHashSet<>();

        Automatic(MetadataRequestData message, Set<String> made) {
            super(1, false, true, MetadataResponseData::new); // in version 0 no topics are all topics
            this.message = message;
            this.made = made;
        }

        static boolean makes(MetadataRequestData message) {
            return message.allowAutoTopicCreation()
                    && message.topics() != null
                    && message.topics().stream().anyMatch(topic -> topic.name() != null);
        }

        /** The error of a topic: none if it may come to be. */
        static short outcome(short code) {
            return code == REFUSED || code == Errors.LEADER_NOT_AVAILABLE.code() ? Errors.NONE.code() : code;
        }

        @Override
        MetadataRequestData question() {
            List<MetadataRequestTopic> topics = new ArrayList<>();
            message.topics().stream()
                    .filter(topic -> topic.name() != null)
                    .forEach(topic -> topics.add(new MetadataRequestTopic().setName(topic.name())));
            return new MetadataRequestData().setTopics(topics).setAllowAutoTopicCreation(false);
        }

        /** A topic has the cluster's number of partitions, and counts as one, as in CreateTopics. */
        @Override
        Map<String, Integer> partitions(MetadataResponseData metadata) {
            for (MetadataResponseTopic topic : metadata.topics()) {
                if (topic.errorCode() != Errors.UNKNOWN_TOPIC_OR_PARTITION.code()) {
                    made.remove(topic.name());
                } else if (!made.contains(topic.name())) {
                    missing.add(topic.name());
                }
            }
            Map<String, Integer> partitions = new LinkedHashMap<>();
            missing.forEach(topic -> partitions.put(topic, 1));
            return partitions;
        }

        @Override
        void remove(Set<String> refused) {
            message.topics().removeIf(topic -> topic.name() != null && refused.contains(topic.name()));
            missing.removeAll(refused);
            made.addAll(missing);
            Iterator<String> oldest = made.iterator();
            for (int left = made.size() - MAX_MADE; left > 0; left--) {
                oldest.next();
                oldest.remove();
            }
        }
    }
}
