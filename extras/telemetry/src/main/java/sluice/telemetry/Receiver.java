package sluice.telemetry;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.JmxReporter;
import org.apache.kafka.common.metrics.KafkaMetricsContext;
import org.apache.kafka.common.metrics.Measurable;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.requests.RequestContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.shaded.com.google.protobuf.InvalidProtocolBufferException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import sluice.kafka.ClusterUse;

/**
 * Takes what clients push, and writes it to the topic with the broker's own figures. Request threads call {@link #take}, which
 * copies a push into a bounded queue; a daemon thread does all else. Nothing is thrown to the broker.
 *
 * <p>What it counts since it was made is the bean `sluice:type=telemetry,node=ID`.
 */
final class Receiver implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(Receiver.class);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int MAX_PUSH_BYTES = 256 << 10;
    private static final int MAX_QUEUED = 1_000;
    private static final long MAX_QUEUED_BYTES = 4 << 20;
    private static final int MAX_TEXT = 256;
    private static final long BROKER_NS = TimeUnit.SECONDS.toNanos(10);
    private static final long PAUSE_MS = 500;
    private static final long CLOSE_MS = 2_000;

    private final Settings settings;
    private final TopicWriter writer;
    private final BrokerFigures figures = new BrokerFigures();
    private final Metrics metrics =
            new Metrics(new MetricConfig(), List.of(new JmxReporter()), Time.SYSTEM, new KafkaMetricsContext("sluice"));
    private final ClusterUse use; // null without the plugin
    private final ArrayBlockingQueue<Map.Entry<Map<String, Object>, byte[]>> queue = new ArrayBlockingQueue<>(MAX_QUEUED);
    private final AtomicLong queuedBytes = new AtomicLong();
    private final AtomicLong pushes = new AtomicLong();
    private final AtomicLong dropped = new AtomicLong(); // for want of room
    private final AtomicLong tooLarge = new AtomicLong();
    private final AtomicLong unreadable = new AtomicLong();
    private final AtomicLong errors = new AtomicLong();
    private final Thread thread = new Thread(this::run, "sluice-telemetry");
    private volatile boolean isClosing;
    private long brokerNs = System.nanoTime();

    /** A receiver that works; its topic needn't be there, nor a broker. */
    Receiver(Settings settings) {
        this.settings = settings;
        this.writer = new TopicWriter(settings);
        Map.of("pushes", pushes, "pushes-dropped", dropped, "pushes-too-large", tooLarge, "pushes-unreadable", unreadable,
                "records-published", writer.published, "records-failed", writer.failed, "errors", errors)
                .forEach((name, count) -> metrics.addMetric(
                        new MetricName(name, "telemetry", "", Map.of("node", settings.node)),
                        (Measurable) (config, nowMs) -> count.get()));
        this.use = settings.hasPlugin ? use() : null;
        thread.setDaemon(true);
        thread.start();
    }

    private ClusterUse use() {
        try {
            return new ClusterUse(settings.configs, settings.clientOf("use"), metrics);
        } catch (RuntimeException | LinkageError error) { // the broker would not start
            LOG.error("Sluice shows no quota-utilization: the plugin's jar is of another version", error);
            return null;
        }
    }

    /** Takes a push, or counts that it doesn't. Never waits, and never throws. */
    void take(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        try {
            pushes.incrementAndGet();
            int size = payload.data().remaining();
            if (size > MAX_PUSH_BYTES) {
                tooLarge.incrementAndGet();
            } else if (!offer(size, context, payload)) {
                dropped.incrementAndGet();
            }
        } catch (Throwable error) { // the client would get an error, and other receivers nothing
            errors.incrementAndGet();
        }
    }

    /** Whether there is room for a push of so many bytes, which are given back if it can't be copied, too. */
    private boolean offer(int size, AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        boolean isQueued = false;
        try {
            isQueued = queuedBytes.addAndGet(size) <= MAX_QUEUED_BYTES && queue.offer(push(context, payload));
        } finally {
            if (!isQueued) {
                queuedBytes.addAndGet(-size);
            }
        }
        return isQueued;
    }

    /** A record without its metrics, and the bytes that they are in. */
    private Map.Entry<Map<String, Object>, byte[]> push(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        Map<String, Object> record = record("client");
        record.put("client_instance_id", payload.clientInstanceId().toString());
        record.put("client_id", bounded(context.clientId()));
        record.put("user", bounded(context.principal().getName()));
        if (context instanceof RequestContext) {
            RequestContext request = (RequestContext) context;
            String version = request.clientInformation.softwareVersion();
            record.put("software", bounded(request.clientInformation.softwareName() + " " + version));
        }
        return Map.entry(record, Utils.toArray(payload.data())); // a copy: Kafka may use the buffer again
    }

    private Map<String, Object> record(String kind) {
        Map<String, Object> record = new LinkedHashMap<>();
        record.put("kind", kind);
        record.put("at_ms", System.currentTimeMillis());
        record.put("broker", settings.node);
        return record;
    }

    private static String bounded(String text) { // the beginning of a longer name may be the whole name of another client
        return text == null || text.length() > MAX_TEXT ? "" : text;
    }

    private void run() {
        while (!isClosing) {
            try {
                round();
            } catch (InterruptedException error) {
                break; // it is closed
            } catch (Throwable error) { // also an Error: the broker goes on, and so does this
                if (errors.getAndIncrement() == 0) {
                    LOG.error("Sluice can't write what a client pushed; it goes on, and only counts further errors", error);
                }
            }
        }
        Thread.interrupted(); // else the producer would not wait for its thread
        writer.close();
    }

    /** Takes pushes by the batch: to wake up for each would cost more than to read it. */
    private void round() throws InterruptedException, JsonProcessingException {
        Thread.sleep(PAUSE_MS);
        if (!writer.isReady()) {
            return;
        }
        Map.Entry<Map<String, Object>, byte[]> push;
        while ((push = queue.poll()) != null) {
            queuedBytes.addAndGet(-push.getValue().length);
            try {
                write("client/" + push.getKey().get("client_instance_id"), push.getKey(), Otlp.read(push.getValue()));
            } catch (InvalidProtocolBufferException error) {
                unreadable.incrementAndGet();
            }
        }
        if (System.nanoTime() - brokerNs >= 0) {
            brokerNs = System.nanoTime() + BROKER_NS;
            write("broker/" + settings.node, record("broker"), figures.read());
        }
    }

    private void write(String key, Map<String, Object> record, Map<String, Double> metrics) throws JsonProcessingException {
        record.put("metrics", metrics);
        writer.write(key, JSON.writeValueAsBytes(record));
    }

    @Override
    public void close() {
        isClosing = true;
        thread.interrupt();
        try {
            thread.join(CLOSE_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        if (use != null) {
            use.close();
        }
        metrics.close();
    }
}
