package sluice.telemetry;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Writes the topic, which it makes if it isn't there. A producer that asks for a topic which isn't there makes brokers create
 * it with their defaults, so there is no producer before. For one thread, which it may keep for seconds.
 */
final class TopicWriter implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(TopicWriter.class);
    private static final long RETRY_NS = TimeUnit.SECONDS.toNanos(5);
    private static final long ANSWER_S = 10;
    private static final Map<String, String> TOPIC = Map.of(
            "cleanup.policy", "compact,delete",
            "min.compaction.lag.ms", "3600000", // a reader sees each push of the last hour
            "retention.ms", "86400000",
            "segment.ms", "600000");
    private static final Map<String, Object> PRODUCER = Map.of(
            "acks", "1",
            "enable.idempotence", "false",
            "linger.ms", "100",
            "compression.type", "gzip", // every reader has it
            "buffer.memory", "2097152",
            "max.block.ms", "2000",
            "request.timeout.ms", "10000",
            "delivery.timeout.ms", "20000");

    final AtomicLong published = new AtomicLong();
    final AtomicLong failed = new AtomicLong();
    private final String topic;
    private final Map<String, Object> client;
    private KafkaProducer<byte[], byte[]> producer;
    private long retryNs = System.nanoTime() + RETRY_NS; // the broker that has just made it doesn't serve yet
    private String said = "";

    TopicWriter(Settings settings) {
        topic = settings.topic;
        client = settings.clientOf("telemetry");
    }

    /** Whether records can be written; looks every few seconds. */
    boolean isReady() throws InterruptedException {
        if (producer == null && System.nanoTime() - retryNs >= 0) {
            retryNs = System.nanoTime() + RETRY_NS;
            if (isThere()) {
                Map<String, Object> properties = new HashMap<>(PRODUCER);
                properties.putAll(client);
                producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
                LOG.info("Sluice writes what clients and this broker say of themselves to topic {}", topic);
            }
        }
        return producer != null;
    }

    /** Writes a record, or counts that it can't. */
    void write(String key, byte[] value) {
        try {
            producer.send(new ProducerRecord<>(topic, key.getBytes(StandardCharsets.UTF_8), value), (sent, error) ->
                    (error == null ? published : failed).incrementAndGet());
        } catch (KafkaException error) {
            failed.incrementAndGet();
        }
    }

    private boolean isThere() throws InterruptedException {
        Map<String, Object> properties = new HashMap<>(client);
        properties.keySet().retainAll(AdminClientConfig.configNames());
        properties.putIfAbsent("metadata.recovery.strategy", "none"); // else it bootstraps again without a pause, and logs it
        Throwable problem;
        Admin admin = Admin.create(properties);
        try {
            problem = problemOf(admin.describeTopics(List.of(topic)).allTopicNames());
            if (problem instanceof UnknownTopicOrPartitionException) {
                NewTopic made = new NewTopic(topic, Optional.empty(), Optional.empty()).configs(TOPIC);
                problem = problemOf(admin.createTopics(List.of(made)).all());
            }
        } finally {
            admin.close(Duration.ZERO);
        }
        boolean isThere = problem == null || problem instanceof TopicExistsException; // another broker made it
        if (!isThere && !problem.toString().equals(said)) {
            said = problem.toString();
            LOG.warn("Sluice can't write topic {} yet; it tries on, and drops what clients push: {}", topic, said);
        }
        return isThere;
    }

    private static Throwable problemOf(KafkaFuture<?> asked) throws InterruptedException {
        try {
            asked.get(ANSWER_S, TimeUnit.SECONDS);
            return null;
        } catch (ExecutionException error) {
            return error.getCause();
        } catch (TimeoutException error) {
            return error;
        }
    }

    @Override
    public void close() {
        if (producer != null) {
            producer.close(Duration.ofMillis(500));
        }
    }
}
