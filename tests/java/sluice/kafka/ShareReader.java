package sluice.kafka;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads numbered records of a topic in a share group of its name (KIP-932), until all have come or its time is over. Prints how
 * many different ones came, how many in all, and the most deliveries of one. Arguments: brokers, client-id, topic, number of
 * records, seconds.
 */
public final class ShareReader {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[2];
        int all = Integer.parseInt(arguments[3]);
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, topic);
        AlterConfigOp earliest =
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.incrementalAlterConfigs(Map.of(group, List.of(earliest))).all().get();
        }
        BitSet seen = new BitSet();
        int records = 0;
        int deliveries = 0;
        Map<String, Object> config = Map.of("bootstrap.servers", servers, "client.id", arguments[1], "group.id", topic);
        long untilNs = System.nanoTime() + Duration.ofSeconds(Long.parseLong(arguments[4])).toNanos();
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (seen.cardinality() < all && System.nanoTime() < untilNs) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                    seen.set(ByteBuffer.wrap(each.value()).getInt());
                    records++;
                    deliveries = Math.max(deliveries, each.deliveryCount().orElse((short) 0));
                }
            }
            consumer.commitSync();
        }
        System.out.println(seen.cardinality() + " " + records + " " + deliveries);
    }
}
