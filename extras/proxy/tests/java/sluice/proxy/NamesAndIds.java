package sluice.proxy;

import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.DeleteTopicsRequestData;
import org.apache.kafka.common.message.DeleteTopicsRequestData.DeleteTopicState;
import org.apache.kafka.common.message.DeleteTopicsResponseData;
import org.apache.kafka.common.message.DeleteTopicsResponseData.DeletableTopicResult;
import org.apache.kafka.common.message.MetadataRequestData;
import org.apache.kafka.common.message.MetadataRequestData.MetadataRequestTopic;
import org.apache.kafka.common.message.MetadataResponseData;
import org.apache.kafka.common.message.MetadataResponseData.MetadataResponsePartition;
import org.apache.kafka.common.message.MetadataResponseData.MetadataResponseTopic;
import org.apache.kafka.common.protocol.Errors;

/** Deletes topics by their names and ids, where clients have named topics like the ids of others. Ends with 1 at a fault. */
public final class NamesAndIds {
    private static final Uuid ID = Uuid.fromString("qPpnLR4zQk6Y4x0zHhRZWA");
    private static final String NAMESAKE = ID.toString();

    public static void main(String[] arguments) {
        chargeBoth();
        giveBackNothingThatWasDone();
        answerAsAsked();
        askByIdBesidesNames();
    }

    /** The topic with the id has 1000 partitions, and the one that is named like it has 1. */
    private static void chargeBoth() {
        MetadataResponseData metadata = new MetadataResponseData();
        metadata.topics().add(described("large", ID, 1_000));
        metadata.topics().add(described(NAMESAKE, Uuid.randomUuid(), 1));
        TopicRequest request = TopicRequest.of(deletion(), Set.of());

        Map<String, Integer> partitions = request.partitions(metadata);

        int charged = partitions.values().stream().mapToInt(Integer::intValue).sum();
        check(charged == 1_001, "1001 partitions are deleted, and " + partitions + " are charged");
    }

    /** A broker knows no such id, or, of an old version, says none; it has deleted the topic that is named like it. */
    private static void giveBackNothingThatWasDone() {
        for (Uuid id : new Uuid[] {ID, Uuid.ZERO_UUID}) {
            DeleteTopicsResponseData response = new DeleteTopicsResponseData();
            response.responses().add(new DeletableTopicResult().setName(id.toString()));
            response.responses()
                    .add(new DeletableTopicResult()
                            .setName(id == ID ? null : "missing")
                            .setTopicId(id)
                            .setErrorCode(Errors.UNKNOWN_TOPIC_ID.code()));

            Set<String> undone = TopicRequest.undone(response);

            check(!undone.contains(id.toString()), id + " was deleted, and is given back");
        }
    }

    /** Who named a topic gets its name back, and who gave an id the id. */
    private static void answerAsAsked() {
        DeleteTopicsRequestData asked = deletion();
        TopicRequest request = TopicRequest.of(asked, Set.of());
        Set<String> refused = request.partitions(new MetadataResponseData()).keySet();

        DeleteTopicsResponseData response = (DeleteTopicsResponseData) request.refusal(refused);
        request.remove(refused);

        check(asked.topics().isEmpty(), asked + " goes on, though all is refused");
        check(response.responses().size() == 2, response + " answers two topics");
        DeletableTopicResult byId = response.responses().stream().filter(each -> each.name() == null).findAny().get();
        check(byId.topicId().equals(ID), byId + " is of " + ID);
        check(response.responses().find(NAMESAKE) != null, response + " has " + NAMESAKE);
    }

    /** Metadata of topics, of which one has no name: it goes on though nothing is refused. */
    private static void askByIdBesidesNames() {
        MetadataRequestData asked = new MetadataRequestData();
        asked.topics().add(new MetadataRequestTopic().setName("made"));
        asked.topics().add(new MetadataRequestTopic().setName(null).setTopicId(ID));
        TopicRequest request = TopicRequest.of(asked, new LinkedHashSet<>());

        request.remove(Set.of());
        check(asked.topics().size() == 2, asked + " asks for two topics");
        request.remove(Set.of("made"));
        check(asked.topics().size() == 1, asked + " asks for one topic");
    }

    /** Deletes the topic with the id, and the one that is named like it. */
    private static DeleteTopicsRequestData deletion() {
        DeleteTopicsRequestData deletion = new DeleteTopicsRequestData();
        deletion.topics().add(new DeleteTopicState().setName(null).setTopicId(ID));
        deletion.topics().add(new DeleteTopicState().setName(NAMESAKE));
        return deletion;
    }

    private static MetadataResponseTopic described(String name, Uuid id, int partitions) {
        MetadataResponseTopic topic = new MetadataResponseTopic().setName(name).setTopicId(id);
        for (int partition = 0; partition < partitions; partition++) {
            topic.partitions().add(new MetadataResponsePartition().setPartitionIndex(partition));
        }
        return topic;
    }

    private static void check(boolean holds, String fault) {
        if (!holds) {
            System.out.println(fault);
            System.exit(1);
        }
    }
}
