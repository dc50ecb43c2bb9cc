package sluice.kafka;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads numbered records of a topic in a share group (KIP-932) until all are accepted or its time is over. Prints how many
 * different ones it accepted, how many came in all, the most deliveries of one, and the group's lag (KIP-1226): how many the
 * broker doesn't know as accepted. Arguments: brokers, client-id, topic, number of records, seconds, mode of acknowledgement,
 * with which the topic makes the group's name. In mode explicit it releases every fourth record the first time, and says what
 * became of records after each poll, by a request of its own (ShareAcknowledge).
 */
public final class ShareReader {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[2];
        int all = Integer.parseInt(arguments[3]);
        String mode = arguments[5];
        String group = topic + "-" + mode;
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp earliest =
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(earliest))).all().get();
            String read = read(servers, arguments[1], topic, group, mode, all, Long.parseLong(arguments[4]));
            long lag = admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                    .partitionsToOffsetInfo(group)
                    .get()
                    .get(new TopicPartition(topic, 0))
                    .lag()
                    .orElse(-1L);
            System.out.println(read + " " + lag);
        }
    }

    private static String read(
            String servers, String clientId, String topic, String group, String mode, int all, long seconds) {
        boolean isExplicit = mode.equals("explicit");
        BitSet accepted = new BitSet();
        int records = 0;
        int deliveries = 0;
        Map<String, Object> config = Map.of(
                "bootstrap.servers",
                servers,
                "client.id",
                clientId,
                "group.id",
                group,
                "share.acknowledgement.mode",
                mode);
        long untilNs = System.nanoTime() + Duration.ofSeconds(seconds).toNanos();
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (accepted.cardinality() < all && System.nanoTime() < untilNs) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    int number = ByteBuffer.wrap(each.value()).getInt();
                    short delivery = each.deliveryCount().orElse((short) 0);
                    boolean isReleased = isExplicit && number % 4 == 0 && delivery == 1;
                    if (isExplicit) {
                        consumer.acknowledge(each, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                    }
                    accepted.set(number, !isReleased);
                    records++;
                    deliveries = Math.max(deliveries, delivery);
                }
                if (isExplicit) {
                    commit(consumer);
                }
            }
            commit(consumer);
        }
        return accepted.cardinality() + " " + records + " " + deliveries;
    }

    private static void commit(KafkaShareConsumer<byte[], byte[]> consumer) {
        consumer.commitSync().values().forEach(failure -> failure.ifPresent(error -> {
            throw error;
        }));
    }
}
