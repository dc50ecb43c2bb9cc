import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.CloseOptions;
import org.apache.kafka.streams.CloseOptions.GroupMembershipOperation;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The controller mutation quota of every user as a Kafka Streams application: a processor with a RocksDB store, which a
 * changelog topic backs. `extras/lab/sluice_lab/benchmarks/peers/kafka_streams.py` starts it.
 *
 * <p>It reads commands from standard input, a line of JSON each: {@code start} with the fields of {@link Command}, and
 * {@code stop}; it answers each with a line, {@code {}} or {@code {"error": ...}}. It ends with its input. So one Java
 * runs one application after another, and stays warm.
 */
public final class KafkaStreamsPeer {
    private static final String STORE = "buckets";
    private static final String QUOTA = "controller_mutation_rate";
    private static final int QUOTA_EXCEEDED = 89;
    private static final String QUOTA_EXCEEDED_MESSAGE = "The throttling quota has been exceeded.";
    private static final ObjectMapper JSON = new ObjectMapper();

    private KafkaStreams streams;

    private KafkaStreamsPeer() {}

    public static void main(String[] args) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err); // what a library prints must not mix with the answers
        KafkaStreamsPeer peer = new KafkaStreamsPeer();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(JSON.writeValueAsString(peer.answer(line)));
        }
        peer.stop();
    }

    private Map<String, String> answer(String line) {
        try {
            Command command = JSON.readValue(line, Command.class);
            if (command.action.equals("start")) {
                start(command);
            } else {
                stop();
            }
            return Map.of();
        } catch (IOException | RuntimeException error) {
            return Map.of("error", error.toString());
        }
    }

    private void start(Command command) {
        streams = new KafkaStreams(topology(command), properties(command));
        streams.start();
    }

    private void stop() {
        if (streams != null) {
            // By default the members stay in the group, so that the next start would wait for the end of their session.
            streams.close(CloseOptions.groupMembershipOperation(GroupMembershipOperation.LEAVE_GROUP));
            streams = null;
        }
    }

    private static Properties properties(Command command) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, command.application);
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, command.servers);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, command.stateFolder);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, command.guarantee);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, command.threads);
        // The defaults of Kafka Streams wait up to 100 ms for a full batch of records, which every decision would.
        properties.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 5);
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return properties;
    }

    private static Topology topology(Command command) {
        Serde<String> strings = Serdes.String();
        return new Topology()
                .addSource("requests", strings.deserializer(), json(Request.class), command.requests)
                .addProcessor("enforcer", () -> new Enforcer(command.limit, command.burst), "requests")
                .addStateStore(
                        Stores.keyValueStoreBuilder(
                                Stores.persistentKeyValueStore(STORE), strings, new BucketSerde()),
                        "enforcer")
                .addSink("decisions", command.decisions, strings.serializer(), toJson(), "enforcer");
    }

    private static <T> Deserializer<T> json(Class<T> type) {
        return (topic, bytes) -> {
            try {
                return JSON.readValue(bytes, type);
            } catch (IOException error) {
                throw new SerializationException("no " + type.getSimpleName() + " in " + topic, error);
            }
        };
    }

    private static Serializer<Decision> toJson() {
        return (topic, decision) -> {
            try {
                return JSON.writeValueAsBytes(decision);
            } catch (IOException error) {
                throw new SerializationException("no decision for " + topic, error);
            }
        };
    }

    /** Decides: tokens refill at the limit up to the burst; a mutation is refused while there are fewer than none. */
    private static final class Enforcer extends ContextualProcessor<String, Request, String, Decision> {
        private final double limit;
        private final double burst;
        private KeyValueStore<String, Bucket> buckets;

        Enforcer(double limit, double burst) {
            this.limit = limit;
            this.burst = burst;
        }

        @Override
        public void init(ProcessorContext<String, Decision> context) {
            super.init(context);
            buckets = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<String, Request> record) {
            Request request = record.value();
            Bucket bucket = buckets.get(request.user);
            if (bucket == null) {
                bucket = new Bucket(burst, request.timestampMs);
            }
            Decision decision = decide(request, bucket);
            buckets.put(request.user, bucket);
            context().forward(record.withValue(decision));
        }

        private Decision decide(Request request, Bucket bucket) {
            bucket.refill(limit, burst, request.timestampMs);
            Decision decision = new Decision(request);
            double charged = 0.0;
            int refused = 0;
            for (Mutation mutation : request.mutations) {
                boolean refuse = bucket.tokens < 0;
                if (refuse) {
                    refused++;
                } else {
                    bucket.tokens = Math.min(burst, bucket.tokens - mutation.partitions);
                    charged += mutation.partitions;
                }
                decision.topicResults.add(new TopicResult(mutation.topic, refuse));
            }
            long waitMs = refused > 0 ? Math.max(1, Math.round(-bucket.tokens / limit * 1000.0)) : 0;
            int throttleMs = (int) Math.min(waitMs, Integer.MAX_VALUE);
            if (throttleMs > 0) {
                decision.throttle(throttleMs, refused == request.mutations.size());
            }
            decision.charges = List.of(new Charge(request.user, limit, charged, bucket.tokens, throttleMs));
            return decision;
        }
    }

    private static final class Bucket {
        private double tokens;
        private long lastMs;

        Bucket(double tokens, long lastMs) {
            this.tokens = tokens;
            this.lastMs = lastMs;
        }

        void refill(double limit, double burst, long nowMs) {
            tokens = Math.min(burst, tokens + limit * ((nowMs - lastMs) / 1000.0));
            lastMs = nowMs;
        }
    }

    private static final class BucketSerde extends Serdes.WrapperSerde<Bucket> {
        BucketSerde() {
            super(
                    (topic, bucket) ->
                            ByteBuffer.allocate(16).putDouble(bucket.tokens).putLong(bucket.lastMs).array(),
                    (topic, bytes) -> {
                        ByteBuffer buffer = ByteBuffer.wrap(bytes);
                        return new Bucket(buffer.getDouble(), buffer.getLong());
                    });
        }
    }

    private static final class Command {
        @JsonProperty private String action;
        @JsonProperty private String servers;
        @JsonProperty private String application;
        @JsonProperty private String requests;
        @JsonProperty private String decisions;
        @JsonProperty("state_folder") private String stateFolder;
        @JsonProperty private String guarantee;
        @JsonProperty private int threads;
        @JsonProperty private double limit;
        @JsonProperty private double burst;
    }

    @JsonIgnoreProperties(ignoreUnknown = true)
    private static final class Request {
        @JsonProperty("request_id") private String requestId;
        @JsonProperty("timestamp_ms") private long timestampMs;
        @JsonProperty private String user;
        @JsonProperty("client_id") private String clientId;
        @JsonProperty private String api;
        @JsonProperty private String gateway;
        @JsonProperty private List<Mutation> mutations;
    }

    private static final class Mutation {
        @JsonProperty private String topic;
        @JsonProperty private long partitions;
    }

    private static final class Decision {
        @JsonProperty("request_id") private final String requestId;
        @JsonProperty("timestamp_ms") private final long timestampMs;
        @JsonProperty private final String user;
        @JsonProperty("client_id") private final String clientId;
        @JsonProperty private final String api;
        @JsonProperty private final String gateway;
        @JsonProperty private String verdict = "ALLOW";
        @JsonProperty("throttle_time_ms") private int throttleTimeMs;
        @JsonProperty("mute_until_ms") private Long muteUntilMs;
        @JsonProperty("error_code") private int errorCode;
        @JsonProperty("topic_results") private final List<TopicResult> topicResults = new ArrayList<>();
        @JsonProperty("decided_by") private String decidedBy;
        @JsonProperty private List<Charge> charges;
        @JsonProperty("decided_at_ms") private final long decidedAtMs = System.currentTimeMillis();

        Decision(Request request) {
            requestId = request.requestId;
            timestampMs = request.timestampMs;
            user = request.user;
            clientId = request.clientId;
            api = request.api;
            gateway = request.gateway;
        }

        void throttle(int throttleMs, boolean rejected) {
            verdict = rejected ? "REJECT" : "THROTTLE";
            errorCode = rejected ? QUOTA_EXCEEDED : 0;
            throttleTimeMs = throttleMs;
            muteUntilMs = timestampMs + throttleMs;
            decidedBy = QUOTA;
        }
    }

    private static final class TopicResult {
        @JsonProperty private final String topic;
        @JsonProperty("error_code") private final int errorCode;
        @JsonProperty("error_message") private final String errorMessage;

        TopicResult(String topic, boolean refused) {
            this.topic = topic;
            errorCode = refused ? QUOTA_EXCEEDED : 0;
            errorMessage = refused ? QUOTA_EXCEEDED_MESSAGE : null;
        }
    }

    private static final class Charge {
        @JsonProperty private final String quota = QUOTA;
        @JsonProperty private final Map<String, String> entity;
        @JsonProperty private final double limit;
        @JsonProperty private final double value;
        @JsonProperty private final double tokens;
        @JsonProperty("throttle_ms") private final int throttleMs;
        @JsonProperty private final boolean violated;

        Charge(String user, double limit, double value, double tokens, int throttleMs) {
            entity = Map.of("user", user);
            this.limit = limit;
            this.value = value;
            this.tokens = tokens;
            this.throttleMs = throttleMs;
            violated = throttleMs > 0;
        }
    }
}
