package sluice.kafka;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.common.metrics.stats.Rate;

/**
 * Writes what a broker's quota meters hold to the file `test.meter.sums`, four times a second, by Kafka's public methods
 * alone: the rate times its window, and `total`, the most that this was at two polls, summed over the times between which
 * it was 0. Of a meter that is charged for no longer than ten seconds at a time that is all it was charged. A fetch that
 * breaks its quota is charged and taken back between two polls.
 */
public final class MeterSums implements MetricsReporter {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Set<KafkaMetric> metrics = ConcurrentHashMap.newKeySet();
    private final Map<KafkaMetric, Double> before = new HashMap<>();
    private final Map<KafkaMetric, Double> most = new HashMap<>();
    private final Map<KafkaMetric, Double> ended = new HashMap<>();
    private Path file;

    @Override
    public void configure(Map<String, ?> configs) {
        file = Paths.get(configs.get("test.meter.sums").toString());
        Thread writer = new Thread(this::write, "meter-sums");
        writer.setDaemon(true);
        writer.start();
    }

    @Override
    public void init(List<KafkaMetric> known) {
        known.forEach(this::metricChange);
    }

    @Override
    public void metricChange(KafkaMetric metric) {
        String name = metric.metricName().name();
        if (metric.metricName().tags().containsKey("client-id")
                && (name.equals("byte-rate") || name.equals("mutation-rate") || name.equals("request-time"))) {
            metrics.add(metric);
        }
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
        metrics.remove(metric);
    }

    @Override
    public void close() {}

    private void write() {
        try {
            for (; ; Thread.sleep(250)) {
                ArrayNode sums = JSON.createArrayNode();
                for (KafkaMetric metric : metrics) {
                    double sum = sum(metric);
                    Double then = before.put(metric, sum);
                    most.merge(metric, then == null ? 0.0 : Math.min(then, sum), Math::max);
                    if (sum == 0) {
                        ended.merge(metric, most.put(metric, 0.0), Double::sum);
                    }
                    sums.addObject()
                            .put("group", metric.metricName().group())
                            .put("user", metric.metricName().tags().get("user"))
                            .put("client_id", metric.metricName().tags().get("client-id"))
                            .put("sum", sum)
                            .put("total", ended.getOrDefault(metric, 0.0) + most.get(metric));
                }
                Path fresh = file.resolveSibling(file.getFileName() + ".fresh");
                JSON.writeValue(fresh.toFile(), sums);
                Files.move(fresh, file, StandardCopyOption.ATOMIC_MOVE);
            }
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static double sum(KafkaMetric metric) {
        long nowMs = System.currentTimeMillis();
        Rate rate = (Rate) metric.measurable();
        return rate.measure(metric.config(), nowMs) * rate.windowSize(metric.config(), nowMs) / 1000.0;
    }
}
