package sluice.telemetry;

import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import javax.management.JMException;
import javax.management.ObjectName;

/** The broker's own figures, from the beans that it has anyway. Those that a version of Kafka lacks are left out. */
final class BrokerFigures {
    private static final double NONE = Double.NEGATIVE_INFINITY;
    private final Map<String, double[]> known = new HashMap<>(); // bean -> how many values it had counted, and their sum

    /** The figures of now by name, percentiles of what came since the last call. */
    Map<String, Double> read() {
        Map<String, Double> read = new TreeMap<>();
        read.put("request_queue_size", number("kafka.network:type=RequestChannel,name=RequestQueueSize", "Value"));
        String idle = "kafka.server:type=KafkaRequestHandlerPool,name=%sRequestHandlerAvgIdlePercent";
        double ofBroker = number(String.format(idle, "Broker"), "OneMinuteRate"); // KIP-1207: without a controller's in its node
        read.put("request_handler_idle", ofBroker != NONE ? ofBroker : number(String.format(idle, ""), "OneMinuteRate"));
        read.put("network_idle", number("kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent", "Value"));
        read.put("log_flush_ms_p99", percentile("kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"));
        for (String request : new String[] {"Produce", "FetchConsumer"}) {
            String bean = "kafka.network:type=RequestMetrics,request=" + request + ",name=";
            read.merge("request_queue_ms_p99", percentile(bean + "RequestQueueTimeMs"), Math::max);
            read.put("local_ms_p99." + request, percentile(bean + "LocalTimeMs"));
        }
        for (String quota : new String[] {"Produce", "Fetch", "Request"}) {
            read.merge("mutes", number("kafka.server:type=" + quota, "queue-size"), Double::sum);
        }
        read.values().removeIf(value -> !Double.isFinite(value));
        return read;
    }

    /**
     * Kafka's 99th percentile, which keeps an old peak until enough new values have come. Of n new ones at least one, and a
     * hundredth, is no smaller than theirs: it is at most their sum over max(1, n / 100).
     */
    private double percentile(String bean) {
        double count = number(bean, "Count");
        double[] now = {count, count * number(bean, "Mean")};
        double[] before = known.put(bean, now);
        double came = count - (before == null ? 0 : before[0]);
        double most = (now[1] - (before == null ? 0 : before[1])) / Math.max(1, came / 100);
        return came > 0 ? Math.min(number(bean, "99thPercentile"), most) : NONE;
    }

    private static double number(String bean, String attribute) {
        try {
            Object value = ManagementFactory.getPlatformMBeanServer().getAttribute(new ObjectName(bean), attribute);
            return value instanceof Number ? ((Number) value).doubleValue() : NONE;
        } catch (JMException error) {
            return NONE; // this Kafka doesn't have it
        }
    }
}
