package sluice.testbed;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A client of Kafka's Java library that produces or consumes as fast as it may, in a thread of its own, and records
 * what it gets. `extras/lab/sluice_lab/testbed/full_speed_clients.py` starts it.
 *
 * <p>It has the library's defaults, but a buffer for some seconds of a quota's share: what would wait for two minutes
 * in the default one, of 32 MiB, times out.
 */
public final class FullSpeedClient {
    private static final Duration POLL = Duration.ofMillis(50);
    private static final long BUFFER_BYTES = 4L * 1024 * 1024;

    private final Map<String, Object> config;
    private final String topic;
    private final int recordBytes;
    private final Queue<String> samples = new ConcurrentLinkedQueue<>();
    private final Queue<String> errors = new ConcurrentLinkedQueue<>();
    private volatile Map<MetricName, ? extends Metric> metrics = Map.of();
    private volatile boolean stopped;

    public FullSpeedClient(String name, String role, String servers, String topic, int recordBytes) {
        this.topic = topic;
        this.recordBytes = recordBytes;
        config = Map.of("bootstrap.servers", servers, "client.id", name, "buffer.memory", BUFFER_BYTES);
        Thread thread = new Thread(role.equals("consume") ? this::consume : this::produce, name);
        thread.setDaemon(true);
        thread.setUncaughtExceptionHandler((of, error) -> errors.add(error.toString()));
        thread.start();
    }

    /** Ends it; what it gets from now on isn't recorded. */
    public void stop() {
        if (closedConnections() > 0) {
            errors.add(closedConnections() + " connections were closed");
        }
        stopped = true;
    }

    /** A line for each sample: epoch milliseconds and bytes. */
    public String samples() {
        return String.join("\n", samples);
    }

    /** A line for each error. */
    public String errors() {
        return String.join("\n", errors);
    }

    private void note(long bytes) {
        if (bytes > 0 && !stopped) {
            samples.add(System.currentTimeMillis() + " " + bytes);
        }
    }

    private int closedConnections() {
        return metrics.entrySet().stream()
                .filter(each -> each.getKey().name().equals("connection-close-total"))
                .mapToInt(each -> ((Double) each.getValue().metricValue()).intValue())
                .sum();
    }

    private void produce() {
        ByteArraySerializer bytes = new ByteArraySerializer();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, bytes, bytes);
        metrics = producer.metrics();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, new byte[recordBytes]);
        while (!stopped) {
            producer.send(
                    record,
                    (metadata, error) -> {
                        if (error == null) {
                            note(recordBytes);
                        } else if (!stopped) {
                            errors.add(error.toString().replace('\n', ' '));
                        }
                    });
        }
        producer.close(Duration.ZERO);
    }

    private void consume() {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, bytes, bytes)) {
            metrics = consumer.metrics();
            List<TopicPartition> partitions =
                    consumer.partitionsFor(topic).stream()
                            .map(each -> new TopicPartition(topic, each.partition()))
                            .toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (!stopped) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                long read = 0;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    read += record.serializedValueSize();
                }
                note(read);
                for (TopicPartition partition : records.partitions()) {
                    if (consumer.position(partition) >= ends.get(partition)) {
                        consumer.seekToBeginning(List.of(partition));
                    }
                }
            }
        }
    }
}
