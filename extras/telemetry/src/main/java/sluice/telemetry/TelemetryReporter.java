package sluice.telemetry;

import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;

/** What both classes for `metric.reporters` have in common: a receiver, from when the broker asks for it. */
abstract class TelemetryReporter implements MetricsReporter {
    private Settings settings;
    private Receiver receiver;

    /** Throws ConfigException for a value that can't be used, which ends the start. */
    @Override
    public void configure(Map<String, ?> configs) {
        settings = new Settings(configs);
    }

    /** The receiver. A controller makes reporters too, and doesn't ask them for one. */
    final synchronized Receiver receiver() {
        if (receiver == null) {
            receiver = new Receiver(settings);
        }
        return receiver;
    }

    @Override
    public void init(List<KafkaMetric> metrics) {}

    @Override
    public void metricChange(KafkaMetric metric) {}

    @Override
    public void metricRemoval(KafkaMetric metric) {}

    @Override
    public synchronized void close() {
        if (receiver != null) {
            receiver.close();
            receiver = null;
        }
    }
}
