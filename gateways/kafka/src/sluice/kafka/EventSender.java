package sluice.kafka;

import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Publishes events. It never waits: an event that can't be sent now fails at once, and the caller keeps its sum.
 *
 * <p>An Error ends the thread of Kafka's producer, and the producer doesn't say so: it takes events that never leave. So
 * a producer that has answered for nothing in longer than `delivery.timeout.ms` is replaced.
 *
 * <p>A producer that asks for a topic which isn't there makes brokers create it, with their defaults and not as Sluice
 * needs it. No property forbids that, so there is no producer until an admin client has seen the topic.
 *
 * <p>For one thread; failures come from that one or from the producer's.
 */
class EventSender implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(EventSender.class);
    private static final long FIRST_PAUSE_MS = 500;
    static final long MUTE_MS = 60_000;
    private static final long LONGEST_PAUSE_MS = 2_000; // a heartbeat that misses longer is taken for that of a lost broker

    /** How many events have reached the topic. */
    final AtomicLong published = new AtomicLong();

    /** How often an event didn't reach the topic; its sum is sent again. */
    final AtomicLong failed = new AtomicLong();

    /** How many producers were replaced. */
    final AtomicLong replaced = new AtomicLong();

    private final String topic;
    private final Map<String, Object> client;
    private final long muteNs;
    private final Map<Object, Runnable> unanswered = new ConcurrentHashMap<>(); // by send, what to do if it fails
    private volatile long answeredNs = System.nanoTime();
    private final Map<String, Object> adminClient;
    private KafkaProducer<byte[], byte[]> producer;
    private Admin admin; // null while there is a producer
    private KafkaFuture<TopicDescription> described; // null unless it was asked for
    private volatile long pauseMs = FIRST_PAUSE_MS;
    private volatile long pausedUntilNs = System.nanoTime(); // the wall clock may be set back
    private volatile String said = "";

    /** A producer is replaced if events wait and none was answered for `muteMs`. */
    EventSender(String topic, Map<String, Object> client, long muteMs) {
        this.topic = topic;
        this.muteNs = TimeUnit.MILLISECONDS.toNanos(muteMs);
        this.client = new HashMap<>(client);
        this.client.put("max.block.ms", "0"); // metadata is asked for in the background
        this.client.putIfAbsent("acks", "all");
        this.client.putIfAbsent("linger.ms", "5");
        // Longer than Kafka waits before it takes a lost replica for dead: until then no record is acknowledged.
        this.client.putIfAbsent("request.timeout.ms", "12000");
        this.client.putIfAbsent("delivery.timeout.ms", "20000");
        this.client.putIfAbsent("reconnect.backoff.max.ms", "1000");
        this.adminClient = TopicReader.adminClient(this.client);
    }

    /** Whether sending may succeed. After a failure it is not tried for a while. */
    boolean isReady() {
        if (unanswered.isEmpty()) {
            answeredNs = System.nanoTime();
        } else if (System.nanoTime() - answeredNs > muteNs) {
            replace();
        }
        return System.nanoTime() - pausedUntilNs >= 0 && hasProducer();
    }

    /** Sends an event; `onFailure` is called if it doesn't reach the topic. */
    void send(byte[] key, byte[] value, long timestampMs, Runnable onFailure) {
        Object sent = new Object();
        unanswered.put(sent, onFailure);
        try {
            producer.send(new ProducerRecord<>(topic, null, timestampMs, key, value), (metadata, error) -> {
                answeredNs = System.nanoTime();
                if (error != null) {
                    fail(error, sent);
                } else if (unanswered.remove(sent) != null) {
                    published.incrementAndGet();
                    pauseMs = FIRST_PAUSE_MS;
                    said = "";
                }
            });
        } catch (KafkaException | IllegalStateException error) {
            fail(error, sent);
        }
    }

    /** Gives up the producer and all that it hasn't answered for. Some of that may be in the topic all the same. */
    private void replace() {
        replaced.incrementAndGet();
        answeredNs = System.nanoTime();
        KafkaProducer<byte[], byte[]> mute = producer;
        producer = null;
        TimeoutException error = new TimeoutException("the producer doesn't answer; it is replaced");
        unanswered.keySet().forEach(sent -> fail(error, sent));
        mute.close(Duration.ZERO);
    }

    /** A new one needs a moment for its metadata: what is sent before fails. */
    private boolean hasProducer() {
        if (producer != null) {
            return true;
        }
        if (isThere()) {
            try {
                producer = new KafkaProducer<>(client, new ByteArraySerializer(), new ByteArraySerializer());
                pausedUntilNs = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(FIRST_PAUSE_MS);
                producer.partitionsFor(topic);
            } catch (TimeoutException error) {
                // now it is asked for
            } catch (KafkaException error) {
                pause(error.toString());
            }
        }
        return false;
    }

    /** Whether the topic is there. Never waits: an answer counts when it has come. */
    private boolean isThere() {
        try {
            if (described == null) {
                admin = admin == null ? Admin.create(adminClient) : admin;
                described = admin.describeTopics(Collections.singletonList(topic)).topicNameValues().get(topic);
            }
            if (!described.isDone()) {
                return false;
            }
            described.get();
            endAdmin();
            return true;
        } catch (ExecutionException error) {
            boolean isMissing = error.getCause() instanceof UnknownTopicOrPartitionException;
            pause(isMissing ? "it doesn't exist yet" : error.getCause().getClass().getSimpleName());
            described = null;
            if (!isMissing) {
                endAdmin(); // brokers may have moved
            }
        } catch (KafkaException error) {
            pause(error.toString());
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        return false;
    }

    private void endAdmin() {
        if (admin != null) {
            admin.close(Duration.ZERO);
        }
        admin = null;
        described = null;
    }

    private void fail(Exception error, Object sent) {
        Runnable onFailure = unanswered.remove(sent);
        if (onFailure != null) {
            failed.incrementAndGet();
            pause(error.getClass().getSimpleName());
            onFailure.run();
        }
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
        endAdmin();
        if (producer != null) {
            producer.close(Duration.ofMillis(500));
        }
    }
}
