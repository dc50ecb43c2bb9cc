package sluice.kafka;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A daemon thread that reads one topic for as long as the broker runs: its past first, then every new record.
 *
 * <p>It waits for a topic that doesn't exist yet, and for brokers that aren't there yet, and goes on where it was after
 * an outage. No record and no error ends it.
 */
final class TopicReader {
    private static final Logger LOG = LoggerFactory.getLogger(TopicReader.class);
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration ASK = Duration.ofSeconds(3);
    private static final Duration CLOSE = Duration.ofMillis(500);
    private static final long RETRY_MS = 500;
    private static final long LOOK_NS = TimeUnit.SECONDS.toNanos(10);
    private static final long READ_AGAIN_NS = TimeUnit.SECONDS.toNanos(60);
    private static final long RENEW_NS = TimeUnit.SECONDS.toNanos(60); // each new client logs its settings, a hundred lines

    /** What to do with what is read; all calls come from the reader's thread. */
    interface Handler {
        /** Takes over a record; what it throws is counted and logged once, and the record is skipped. */
        void take(byte[] key, byte[] value) throws Exception;

        /** The topic is read from its beginning again, because it was made again or has lost records. */
        void restart();

        /** All that the topic had when reading began has been read; it is told once. */
        default void noteRead() {}

        /** Whether records are missing that the topic has lost; then it is read from its beginning, but seldom. */
        default boolean hasGaps() {
            return false;
        }
    }

    /** Besides, it is told every ten seconds how many brokers there are; not while the cluster doesn't say. */
    interface ClusterHandler extends Handler {
        void brokers(int count);
    }

    final LastingThread thread;
    final Fence fence = new Fence();

    /** How many records could not be handled. */
    volatile long unreadable;

    private final String topic;
    private final Long lookbackMs;
    private final Map<String, Object> client;
    private final Map<String, Object> adminClient;
    private final Handler handler;
    private final Map<TopicPartition, Long> positions = new HashMap<>();
    private final Map<TopicPartition, Long> past = new HashMap<>(); // where it ends that wasn't read yet
    private boolean isReading;
    private Uuid topicId; // null before the topic was there
    private boolean hasReadPast;
    private long readAgainNs = System.nanoTime() - READ_AGAIN_NS;
    private String said = "";

    /** `lookbackMs` says how old the first records are that are read; null is from the beginning. */
    TopicReader(String topic, Long lookbackMs, Map<String, Object> client, Handler handler) {
        this.topic = topic;
        this.lookbackMs = lookbackMs;
        this.client = new HashMap<>(client);
        this.client.put("enable.auto.commit", "false");
        this.client.put("auto.offset.reset", "none");
        this.client.put("allow.auto.create.topics", "false");
        this.client.putIfAbsent("metadata.max.age.ms", "10000");
        this.client.putIfAbsent("reconnect.backoff.max.ms", "1000");
        this.adminClient = adminClient(this.client);
        this.handler = handler;
        this.thread = new LastingThread("sluice-reader-" + topic, this::round, () -> {});
    }

    /** The properties of an admin client beside one with these. */
    static Map<String, Object> adminClient(Map<String, Object> client) {
        Map<String, Object> adminClient = new HashMap<>(client);
        adminClient.keySet().retainAll(AdminClientConfig.configNames());
        // While no broker answers, an admin client of 4.3 or 4.4 bootstraps again, and logs it, hundreds of times a second.
        adminClient.putIfAbsent("metadata.recovery.strategy", "none");
        return adminClient;
    }

    /** Reads until a client fails. What isn't an Exception ends the round, and the next one goes on at the same record. */
    private void round() throws InterruptedException {
        try {
            readWithClients();
        } catch (OffsetOutOfRangeException | NoOffsetForPartitionException error) {
            beginAgain();
        } catch (Exception error) {
            if (!thread.isClosing) {
                report(error.toString());
            }
        } finally {
            isReading = false;
        }
        if (!thread.isClosing) {
            Thread.sleep(RETRY_MS);
        }
    }

    private void readWithClients() throws Exception {
        Admin admin = Admin.create(adminClient);
        try {
            readWithConsumer(admin);
        } finally {
            admin.close(Duration.ZERO); // a call that nobody answers would keep its thread for a minute
        }
    }

    @SuppressWarnings("deprecation") // Kafka 3.9 has no CloseOptions
    private void readWithConsumer(Admin admin) throws Exception {
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(client, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            read(consumer, admin);
        } finally {
            Thread.interrupted(); // clients would not wait for their threads, and the consumer logs that as an error
            consumer.close(CLOSE); // it would wait for half a minute for a broker that doesn't answer
        }
    }

    private void read(KafkaConsumer<byte[], byte[]> consumer, Admin admin) throws Exception {
        long lookAgainNs = System.nanoTime();
        long renewNs = System.nanoTime() + RENEW_NS;
        while (!thread.isClosing) {
            thread.noteSign();
            if (System.nanoTime() - lookAgainNs >= 0) {
                if (!look(consumer, admin, renewNs)) {
                    Thread.sleep(RETRY_MS);
                    continue;
                }
                lookAgainNs = System.nanoTime() + LOOK_NS;
                renewNs = System.nanoTime() + RENEW_NS;
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                take(record);
                // To ask the consumer may take as long as a partition waits for its new leader; others have to be read.
                positions.put(new TopicPartition(topic, record.partition()), record.offset() + 1);
            }
            noteReading();
            notePast(consumer);
            if (handler.hasGaps() && mayReadAgain()) {
                LOG.warn("Topic {} has removed records that Sluice hasn't read; it reads it from its beginning", topic);
                beginAgain();
                lookAgainNs = System.nanoTime();
            }
        }
    }

    private void notePast(KafkaConsumer<byte[], byte[]> consumer) {
        if (!hasReadPast) {
            past.entrySet().removeIf(each -> isRead(consumer, each.getKey(), each.getValue()));
            hasReadPast = past.isEmpty();
            if (hasReadPast) {
                handler.noteRead();
            }
        }
    }

    /** Whether a partition is read up to an offset, which a marker of a transaction may precede. Never waits for a leader. */
    private static boolean isRead(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, long end) {
        try {
            return consumer.position(partition, Duration.ZERO) >= end;
        } catch (org.apache.kafka.common.errors.TimeoutException noPosition) {
            return false; // others have to be read meanwhile
        }
    }

    /** Looks at the topic; says whether it can be read. From `renewNs` on clients that get no answer fail: brokers may have moved. */
    private boolean look(KafkaConsumer<byte[], byte[]> consumer, Admin admin, long renewNs) throws Exception {
        try {
            if (handler instanceof ClusterHandler) {
                askForBrokers(admin, (ClusterHandler) handler);
            }
            if (assign(consumer, describe(admin))) {
                return true;
            }
            report("it doesn't exist yet");
        } catch (TimeoutException | org.apache.kafka.common.errors.TimeoutException error) {
            if (System.nanoTime() - renewNs >= 0) {
                throw error;
            }
            report(error.toString());
        }
        return false;
    }

    private boolean mayReadAgain() {
        boolean may = System.nanoTime() - readAgainNs >= READ_AGAIN_NS;
        readAgainNs = may ? System.nanoTime() : readAgainNs;
        return may;
    }

    /** Asks how many brokers there are. If the cluster doesn't say, the last number holds, and reading goes on. */
    private void askForBrokers(Admin admin, ClusterHandler told) throws InterruptedException {
        try {
            told.brokers(admin.describeCluster().nodes().get(ASK.toMillis(), TimeUnit.MILLISECONDS).size());
        } catch (ExecutionException | TimeoutException error) {
            LOG.debug("The cluster doesn't say how many brokers it has", error);
        }
    }

    /** The topic as the cluster has it now; null if there is none. */
    private TopicDescription describe(Admin admin) throws Exception {
        try {
            return admin.describeTopics(Collections.singletonList(topic))
                    .topicNameValues()
                    .get(topic)
                    .get(ASK.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return null;
            }
            throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
        }
    }

    /** Takes all partitions of the topic; says whether there are any. Offsets alone don't always show a new topic. */
    private boolean assign(KafkaConsumer<byte[], byte[]> consumer, TopicDescription description) {
        if (description == null) {
            return false;
        }
        if (topicId != null && !topicId.equals(description.topicId())) {
            LOG.warn("Topic {} was made again; Sluice reads it from its beginning", topic);
            beginAgain();
        }
        topicId = description.topicId();
        List<TopicPartition> partitions = new ArrayList<>();
        description.partitions().forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
        if (partitions.size() > Math.min(positions.size(), consumer.assignment().size())) {
            begin(consumer, partitions);
        }
        return !partitions.isEmpty();
    }

    private void beginAgain() {
        positions.clear();
        fence.forget();
        handler.restart();
    }

    private void begin(KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions) {
        List<TopicPartition> unread = new ArrayList<>(partitions);
        unread.removeAll(positions.keySet());
        if (!unread.isEmpty()) { // only then the leaders have to answer
            if (!hasReadPast) {
                past.putAll(consumer.endOffsets(unread, ASK));
            }
            positions.putAll(beginnings(consumer, unread, positions.isEmpty()));
        }
        consumer.assign(partitions);
        partitions.forEach(partition -> consumer.seek(partition, positions.get(partition)));
    }

    /** Where to begin to read; a partition that was added later is read from its beginning. */
    private Map<TopicPartition, Long> beginnings(
            KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions, boolean isFirst) {
        if (!isFirst || lookbackMs == null) {
            return consumer.beginningOffsets(partitions, ASK);
        }
        Map<TopicPartition, Long> times = new HashMap<>();
        long sinceMs = Math.max(0, System.currentTimeMillis() - lookbackMs);
        partitions.forEach(partition -> times.put(partition, sinceMs));
        Map<TopicPartition, Long> beginnings = consumer.endOffsets(partitions, ASK);
        consumer.offsetsForTimes(times, ASK).forEach((partition, found) -> {
            if (found != null) {
                beginnings.put(partition, found.offset());
            }
        });
        return beginnings;
    }

    private void take(ConsumerRecord<byte[], byte[]> record) {
        try {
            if (!fence.passes(record)) {
                return;
            }
            handler.take(record.key(), record.value());
        } catch (OutOfMemoryError error) {
            throw error; // it isn't the record's fault
        } catch (Throwable error) {
            if (unreadable++ == 0) {
                LOG.warn("Sluice passes over a record that it can't read ({}-{} offset {}: {}); further ones are only"
                        + " counted", topic, record.partition(), record.offset(), error.toString());
            }
        }
    }

    private void noteReading() {
        if (!isReading) {
            isReading = true;
            said = "";
            LOG.info("Sluice reads topic {}", topic);
        }
    }

    private void report(String problem) {
        isReading = false;
        if (!problem.equals(said)) {
            said = problem;
            LOG.warn("Sluice can't read topic {} ({}); it tries on", topic, problem);
        }
    }
}
