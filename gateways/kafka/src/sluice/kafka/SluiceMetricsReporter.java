package sluice.kafka;

import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;

/**
 * Hands the broker's quota metrics to the plugin: `metric.reporters`, beside Kafka's own JmxReporter.
 *
 * <p>It reports nothing itself. Request threads come here when Kafka makes a sensor; then a metric is remembered.
 */
public final class SluiceMetricsReporter implements MetricsReporter {
    BrokerGateway gateway;

    @Override
    public void configure(Map<String, ?> configs) {
        gateway = Nodes.of(configs);
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
        gateway.beginMetrics();
        metrics.forEach(this::metricChange);
    }

    @Override
    public void metricChange(KafkaMetric metric) {
        gateway.add(metric);
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
        gateway.remove(metric);
    }

    /** Kafka closes a reporter that `metric.reporters` no longer names, while the broker runs; it makes another one later. */
    @Override
    public void close() {
        gateway.endMetrics();
    }
}
