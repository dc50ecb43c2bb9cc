package sluice.telemetry;

import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.DoubleBinaryOperator;
import javax.management.JMException;
import javax.management.ObjectName;

/** The broker's own figures, from the beans that it has anyway. Those that a version of Kafka lacks are left out. */
final class BrokerFigures {
    private static final String P99 = "99thPercentile";
    private final Map<String, Double> figures = new TreeMap<>();

    private BrokerFigures() {}

    /** The figures of now, by name. */
    static Map<String, Double> read() {
        BrokerFigures read = new BrokerFigures();
        read.put("request_queue_size", "kafka.network:type=RequestChannel,name=RequestQueueSize", "Value", Math::max);
        read.put("request_handler_idle",
                "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent", "OneMinuteRate", Math::max);
        read.put("network_idle", "kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent", "Value", Math::max);
        read.put("log_flush_ms_p99", "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs", P99, Math::max);
        for (String request : new String[] {"Produce", "FetchConsumer"}) {
            String bean = "kafka.network:type=RequestMetrics,request=" + request + ",name=";
            read.put("request_queue_ms_p99", bean + "RequestQueueTimeMs", P99, Math::max);
            read.put("local_ms_p99." + request, bean + "LocalTimeMs", P99, Math::max);
        }
        for (String quota : new String[] {"Produce", "Fetch", "Request"}) {
            read.put("mutes", "kafka.server:type=" + quota, "queue-size", Double::sum);
        }
        return read.figures;
    }

    private void put(String name, String bean, String attribute, DoubleBinaryOperator both) {
        try {
            Object value = ManagementFactory.getPlatformMBeanServer().getAttribute(new ObjectName(bean), attribute);
            if (value instanceof Number && Double.isFinite(((Number) value).doubleValue())) {
                figures.merge(name, ((Number) value).doubleValue(), both::applyAsDouble);
            }
        } catch (JMException error) {
            return; // this Kafka doesn't have it
        }
    }
}
