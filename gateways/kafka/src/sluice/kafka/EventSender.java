package sluice.kafka;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Publishes events. It never waits: an event that can't be sent now fails at once, and the caller keeps its sum.
 *
 * <p>For one thread; failures come from that one or from the producer's.
 */
final class EventSender implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(EventSender.class);
    private static final long FIRST_PAUSE_MS = 500;
    private static final long LONGEST_PAUSE_MS = 2_000; // a heartbeat that misses longer is taken for that of a lost broker

    private final String topic;
    private final Map<String, Object> client;
    private final AtomicLong published = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private KafkaProducer<byte[], byte[]> producer;
    private volatile long pauseMs = FIRST_PAUSE_MS;
    private volatile long pausedUntilNs = System.nanoTime(); // the wall clock may be set back
    private volatile String said = "";

    EventSender(String topic, Map<String, Object> client) {
        this.topic = topic;
        this.client = new HashMap<>(client);
        this.client.put("max.block.ms", "0"); // metadata is asked for in the background
        this.client.putIfAbsent("acks", "all");
        this.client.putIfAbsent("linger.ms", "5");
        // Longer than Kafka waits before it takes a lost replica for dead: until then no record is acknowledged.
        this.client.putIfAbsent("request.timeout.ms", "12000");
        this.client.putIfAbsent("delivery.timeout.ms", "20000");
        this.client.putIfAbsent("reconnect.backoff.max.ms", "1000");
    }

    /** Whether sending may succeed. After a failure it is not tried for a while. */
    boolean isReady() {
        return System.nanoTime() - pausedUntilNs >= 0 && producer() != null;
    }

    /** Sends an event; `onFailure` is called if it doesn't reach the topic. */
    void send(byte[] key, byte[] value, long timestampMs, Runnable onFailure) {
        try {
            producer.send(new ProducerRecord<>(topic, null, timestampMs, key, value), (metadata, error) -> {
                if (error == null) {
                    published.incrementAndGet();
                    pauseMs = FIRST_PAUSE_MS;
                    said = "";
                } else {
                    fail(error, onFailure);
                }
            });
        } catch (KafkaException | IllegalStateException error) {
            fail(error, onFailure);
        }
    }

    /** How many events have reached the topic. */
    long published() {
        return published.get();
    }

    /** How often an event didn't reach the topic; its sum is sent again. */
    long failed() {
        return failed.get();
    }

    private KafkaProducer<byte[], byte[]> producer() {
        if (producer == null) {
            try {
                producer = new KafkaProducer<>(client, new ByteArraySerializer(), new ByteArraySerializer());
            } catch (KafkaException error) {
                pause(error.toString());
            }
        }
        return producer;
    }

    private void fail(Exception error, Runnable onFailure) {
        failed.incrementAndGet();
        pause(error.getClass().getSimpleName());
        onFailure.run();
    }

    /** Batches that fail together make one pause, twice as long as the one before. */
    private synchronized void pause(String problem) {
        long nowNs = System.nanoTime();
        if (nowNs - pausedUntilNs >= 0) {
            pausedUntilNs = nowNs + TimeUnit.MILLISECONDS.toNanos(pauseMs);
            pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
        }
        if (!problem.equals(said)) {
            said = problem;
            LOG.warn("Sluice can't publish to topic {} ({}); what is charged meanwhile is summed up", topic, problem);
        }
    }

    @Override
    public void close() {
        if (producer != null) {
            producer.close(Duration.ofMillis(500));
        }
    }
}
