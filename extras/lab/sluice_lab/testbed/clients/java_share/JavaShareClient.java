package sluice.testbed;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads in a share group (KIP-932); Java clients before 4.0 have none. */
final class JavaShareClient extends JavaClient {
    JavaShareClient(Properties lines) throws Exception {
        super(lines);
    }

    public static void main(String[] arguments) throws Exception {
        new JavaShareClient(read()).run();
    }

    @Override
    void consume() throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, topic());
        AlterConfigOp earliest =
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(config("admin"))) {
            admin.incrementalAlterConfigs(Map.of(group, List.of(earliest))).all().get();
        }
        Properties config = config("consumer");
        config.put("group.id", topic());
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic()));
            takeAll(() -> consumer.poll(Duration.ofMillis(200)));
            consumer.commitSync();
        }
    }
}
