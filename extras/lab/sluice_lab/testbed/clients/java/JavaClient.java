package sluice.testbed;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A producer and a consumer of Kafka's Java library. What it reads and prints says `extras/lab/sluice_lab/testbed/clients/cell.py`. */
class JavaClient {
    static final int ROUNDS = 5;
    static final int VALUES_PER_ROUND = 20;
    static final int VALUE_BYTES = 1000;
    static final Duration WAIT = Duration.ofSeconds(60);
    static final long TIMESTAMP_MS = 1_700_000_000_000L;

    final Map<String, String> given;
    private final MessageDigest digest;
    private int records;

    JavaClient(Properties lines) throws Exception {
        given = lines.stringPropertyNames().stream().collect(Collectors.toMap(key -> key, lines::getProperty));
        digest = MessageDigest.getInstance("SHA-256");
    }

    public static void main(String[] arguments) throws Exception {
        new JavaClient(read()).run();
    }

    static Properties read() throws Exception {
        Properties lines = new Properties();
        lines.load(System.in);
        return lines;
    }

    void run() {
        try {
            produce();
            consume();
        } catch (Exception error) {
            System.out.println("error=" + String.valueOf(error).replaceAll("\\s+", " "));
        }
        end();
    }

    /** The configuration of a `producer` or a `consumer`. */
    Properties config(String role) {
        Properties found = new Properties();
        found.put("bootstrap.servers", given.get("servers"));
        found.put("client.id", given.get("client.id"));
        given.forEach((key, value) -> {
            int dot = key.indexOf('.');
            if (key.startsWith("common.") || key.startsWith(role + ".")) {
                found.put(key.substring(dot + 1), value);
            }
        });
        return found;
    }

    /** Sends all rounds, each as one batch; the first one's transaction is aborted. */
    private void produce() throws Exception {
        Properties config = config("producer");
        config.put("linger.ms", "30000");
        config.put("batch.size", "100000");
        boolean isTransactional = config.containsKey("transactional.id");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (isTransactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int round = 0; round < ROUNDS; round++) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int number = 0; number < VALUES_PER_ROUND; number++) {
                    sent.add(producer.send(
                            new ProducerRecord<>(topic(), 0, TIMESTAMP_MS, null, value(round, number))));
                }
                producer.flush();
                for (Future<RecordMetadata> each : sent) {
                    each.get();
                }
                if (isTransactional && round == 0) {
                    producer.abortTransaction();
                    producer.beginTransaction();
                }
            }
            if (isTransactional) {
                producer.commitTransaction();
            }
        }
    }

    /** Reads all that is there. */
    void consume() throws Exception {
        Properties config = config("consumer");
        config.put("group.id", topic());
        config.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic()));
            takeAll(() -> consumer.poll(Duration.ofMillis(200)));
            consumer.commitSync();
        }
    }

    void takeAll(Supplier<ConsumerRecords<byte[], byte[]>> poll) {
        long until = System.nanoTime() + WAIT.toNanos();
        while (records < Integer.parseInt(given.get("expected")) && System.nanoTime() < until) {
            for (ConsumerRecord<byte[], byte[]> record : poll.get()) {
                records++;
                digest.update(record.value());
            }
        }
    }

    String topic() {
        return given.get("topic");
    }

    private static byte[] value(int round, int number) {
        String word = String.format("%03d.%03d-", round, number);
        return word.repeat(VALUE_BYTES).substring(0, VALUE_BYTES).getBytes(StandardCharsets.US_ASCII);
    }

    private void end() {
        StringBuilder hex = new StringBuilder();
        for (byte each : digest.digest()) {
            hex.append(String.format("%02x", each));
        }
        System.out.println("records=" + records + "\ndigest=" + hex);
    }
}
