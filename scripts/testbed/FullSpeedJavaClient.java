import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client in `scripts/testbed/full_speed_client.py`, which starts it with a Java that compiles it:
 * `java FullSpeedJavaClient.java ROLE SERVERS TOPIC CLIENT_ID SAMPLES RECORD_BYTES`. It ends with SIGTERM.
 */
final class FullSpeedJavaClient {
    private static final long SAMPLE_MS = 50;

    private FullSpeedJavaClient() {}

    public static void main(String[] args) throws Exception {
        Map<String, Object> client = new HashMap<>(Map.of("bootstrap.servers", args[1], "client.id", args[3]));
        AtomicLong amount = new AtomicLong();
        Thread writer = new Thread(() -> writeSamples(Path.of(args[4]), amount));
        writer.setDaemon(true);
        writer.start();
        System.out.println("ready");
        if (args[0].equals("produce")) {
            produce(client, args[2], Integer.parseInt(args[5]), amount);
        } else {
            consume(client, args[2], amount);
        }
    }

    private static void writeSamples(Path file, AtomicLong amount) {
        try {
            while (true) {
                Thread.sleep(SAMPLE_MS);
                long taken = amount.getAndSet(0);
                if (taken > 0) {
                    String line = System.currentTimeMillis() + " " + taken + "\n";
                    Files.writeString(file, line, StandardOpenOption.APPEND);
                }
            }
        } catch (Exception error) {
            sayError(error);
        }
    }

    private static void sayError(Exception error) {
        System.out.println("error: " + error);
    }

    private static void produce(Map<String, Object> client, String topic, int recordBytes, AtomicLong amount) {
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(client, new ByteArraySerializer(), new ByteArraySerializer());
        byte[] value = new byte[recordBytes];
        while (true) {
            producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {
                if (error == null) {
                    amount.addAndGet(recordBytes);
                } else {
                    sayError(error);
                }
            });
        }
    }

    private static void consume(Map<String, Object> client, String topic, AtomicLong amount) {
        client.put("enable.auto.commit", false);
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(client, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(partition -> new TopicPartition(topic, partition.partition()))
                .collect(Collectors.toList());
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        while (true) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(SAMPLE_MS));
            for (ConsumerRecord<byte[], byte[]> record : records) {
                amount.addAndGet(record.value().length);
            }
            for (TopicPartition partition : records.partitions()) {
                if (consumer.position(partition) >= ends.get(partition)) {
                    consumer.seekToBeginning(List.of(partition));
                }
            }
        }
    }
}
