import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The controller mutation quota in Kafka Streams: a token bucket per user in RocksDB with a changelog, and a decision on
 * each request. The requests are keyed so that all of a user are in one partition.
 *
 * <p>Arguments: bootstrap servers, requests topic, decisions topic, application id, processing guarantee, state folder,
 * threads, limit in partitions/s, samples and milliseconds of the window. It runs until SIGTERM.
 */
public final class StreamsQuota {
    private static final String STORE = "buckets";

    private record Bucket(double tokens, long lastMs) {}

    private record Quota(double limit, double burst) {
        /** As KIP-599 has it: refill up to the burst. */
        Bucket refilled(Bucket bucket, long nowMs) {
            double refilled = bucket.tokens() + limit * ((nowMs - bucket.lastMs()) / 1000.0);
            return new Bucket(Math.min(burst, refilled), nowMs);
        }

        long waitMs(Bucket bucket) {
            return Math.round(-bucket.tokens() / limit * 1000.0);
        }
    }

    public static void main(String[] args) throws InterruptedException {
        String requests = args[1];
        String decisions = args[2];
        double limit = Double.parseDouble(args[7]);
        double windowS = Integer.parseInt(args[8]) * (Long.parseLong(args[9]) / 1000.0);
        Quota quota = new Quota(limit, limit * windowS);

        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.String(), bucketSerde())
                        .withCachingEnabled());
        builder.stream(requests, Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .processValues(() -> new Decide(quota), STORE)
                .to(decisions, Produced.with(Serdes.String(), Serdes.ByteArray()));

        KafkaStreams streams = new KafkaStreams(builder.build(), properties(args));
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            main.interrupt();
        }));
        streams.start();
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException ended) {
            return;
        }
    }

    /** Kafka Streams' own defaults, but for what makes a restart quick and a single broker enough. */
    private static Properties properties(String[] args) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, args[3]);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[4]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, args[5]);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, args[6]);
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, "1");
        properties.put("consumer.auto.offset.reset", "earliest");
        properties.put("consumer.group.instance.id", args[3]); // else a restart waits for the session's end
        return properties;
    }

    private static final class Decide implements FixedKeyProcessor<String, byte[], byte[]> {
        private static final ObjectMapper JSON = new ObjectMapper();
        private final Quota quota;
        private FixedKeyProcessorContext<String, byte[]> context;
        private KeyValueStore<String, Bucket> buckets;

        Decide(Quota quota) {
            this.quota = quota;
        }

        @Override
        public void init(FixedKeyProcessorContext<String, byte[]> context) {
            this.context = context;
            this.buckets = context.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<String, byte[]> record) {
            try {
                context.forward(record.withValue(decide(JSON.readTree(record.value()))));
            } catch (IOException unreadable) {
                throw new UncheckedIOException(unreadable);
            }
        }

        private byte[] decide(JsonNode request) throws IOException {
            String user = request.path("user").asText();
            long nowMs = request.path("timestamp_ms").asLong();
            Bucket bucket = buckets.get(user);
            if (bucket == null) {
                bucket = new Bucket(quota.burst(), nowMs);
            }
            long throttleMs = 0;
            double charged = 0;
            for (JsonNode mutation : request.path("mutations")) {
                bucket = quota.refilled(bucket, nowMs);
                if (bucket.tokens() < 0) {
                    throttleMs = quota.waitMs(bucket);
                } else {
                    double partitions = mutation.path("partitions").asDouble();
                    bucket = new Bucket(Math.min(quota.burst(), bucket.tokens() - partitions), nowMs);
                    charged += partitions;
                }
            }
            buckets.put(user, bucket);
            return decision(request, bucket, charged, throttleMs);
        }

        private byte[] decision(JsonNode request, Bucket bucket, double charged, long throttleMs) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream(512);
            try (JsonGenerator json = JSON.createGenerator(bytes)) {
                json.writeStartObject();
                json.writeNumberField("timestamp_ms", request.path("timestamp_ms").asLong());
                for (String name : new String[] {"request_id", "user", "client_id", "api", "gateway"}) {
                    json.writeStringField(name, request.path(name).asText());
                }
                json.writeStringField("verdict", throttleMs > 0 ? "THROTTLE" : "ALLOW");
                json.writeNumberField("throttle_time_ms", throttleMs);
                json.writeArrayFieldStart("charges");
                json.writeStartObject();
                json.writeStringField("quota", "controller_mutation_rate");
                json.writeNumberField("limit", quota.limit());
                json.writeNumberField("value", charged);
                json.writeNumberField("tokens", bucket.tokens());
                json.writeNumberField("throttle_ms", throttleMs);
                json.writeBooleanField("violated", throttleMs > 0);
                json.writeEndObject();
                json.writeEndArray();
                json.writeEndObject();
            }
            return bytes.toByteArray();
        }
    }

    private static Serde<Bucket> bucketSerde() {
        Serializer<Bucket> writer = (topic, bucket) -> bucket == null
                ? null
                : ByteBuffer.allocate(16).putDouble(bucket.tokens()).putLong(bucket.lastMs()).array();
        Deserializer<Bucket> reader = (topic, bytes) -> {
            if (bytes == null) {
                return null;
            }
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return new Bucket(buffer.getDouble(), buffer.getLong());
        };
        return Serdes.serdeFrom(writer, reader);
    }
}
