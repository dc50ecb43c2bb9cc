package sluice.telemetry;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.shaded.com.google.protobuf.InvalidProtocolBufferException;
import org.apache.kafka.shaded.io.opentelemetry.proto.common.v1.AnyValue;
import org.apache.kafka.shaded.io.opentelemetry.proto.common.v1.KeyValue;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.Metric;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.MetricsData;
import org.apache.kafka.shaded.io.opentelemetry.proto.metrics.v1.NumberDataPoint;

/**
 * Reads the numbers of a push, OpenTelemetry's `MetricsData`, with the classes that Kafka's own clients write it with: they are
 * in the jar of every broker. They read a message of others safely, and make some ten times its bytes of it.
 */
final class Otlp {
    private static final int MAX_METRICS = 200;
    private static final int MAX_NAME = 200;
    private static final String PREFIX = "org.apache.kafka.";
    private static final List<String> WANTED = List.of(
            "throttle.time", ".latency.", "queue.time", ".poll.", "rebalance", "record.error.total", "record.retry.total", "lag.max",
            "bufferpool.wait.ratio", "waiting.threads", "buffer.available", "requests.in.flight", "heartbeat.response");
    private static final Pattern BROKER = Pattern.compile("(?:node-)?(\\d{1,10})"); // Java's clients, librdkafka's

    private Otlp() {}

    /** The wanted metrics by name without Kafka's prefix; of several values the largest, and those of brokers by their id. */
    static Map<String, Double> read(byte[] data) throws InvalidProtocolBufferException {
        Map<String, Double> metrics = new TreeMap<>();
        MetricsData.parseFrom(data).getResourceMetricsList().forEach(resource ->
                resource.getScopeMetricsList().forEach(scope ->
                        scope.getMetricsList().forEach(metric -> take(metric, metrics))));
        return metrics;
    }

    private static void take(Metric metric, Map<String, Double> metrics) {
        String name = metric.getName();
        if (!name.startsWith(PREFIX) || name.length() > MAX_NAME || WANTED.stream().noneMatch(name::contains)) {
            return;
        }
        String own = name.substring(PREFIX.length());
        for (NumberDataPoint point : metric.hasGauge()
                ? metric.getGauge().getDataPointsList()
                : metric.getSum().getDataPointsList()) {
            double number = point.hasAsInt() ? point.getAsInt() : point.getAsDouble();
            put(own, number, metrics);
            for (KeyValue attribute : point.getAttributesList()) {
                if (attribute.getKey().equals("node_id") || attribute.getKey().equals("node.id")) {
                    AnyValue value = attribute.getValue();
                    Matcher broker = BROKER.matcher(
                            value.hasStringValue() ? value.getStringValue() : Long.toString(value.getIntValue()));
                    if (broker.matches()) {
                        put(own + "." + broker.group(1), number, metrics);
                    }
                }
            }
        }
    }

    private static void put(String name, double value, Map<String, Double> metrics) {
        if (Double.isFinite(value) && (metrics.size() < MAX_METRICS || metrics.containsKey(name))) {
            metrics.merge(name, value, Math::max);
        }
    }
}
