package sluice.kafka;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.management.JMException;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The gateway of each node in this process. Kafka makes the metrics reporter and the quota callback, for a node that is
 * broker and controller two of each, and tells them nothing of each other: they meet here, by the node's id and folders,
 * as clusters in one process number their nodes alike.
 */
final class Nodes {
    private static final Logger LOG = LoggerFactory.getLogger(Nodes.class);
    private static final Map<List<Object>, BrokerGateway> NODES = new HashMap<>();

    private Nodes() {}

    /** The gateway of the node that has this configuration. Throws ConfigException for one that can't be used. */
    static synchronized BrokerGateway of(Map<String, ?> configs) {
        // A reporter that is made while the broker runs gets values, such as a list, where the first one got text.
        List<Object> key = Arrays.asList(
                BrokerSettings.nodeOf(configs),
                BrokerSettings.logDirsOf(configs),
                String.valueOf(configs.get("metadata.log.dir")));
        return NODES.computeIfAbsent(key, unknown -> new BrokerGateway(new BrokerSettings(configs)));
    }

    /** The same, for a callback: the first one starts the gateway. */
    static synchronized BrokerGateway open(Map<String, ?> configs) {
        BrokerGateway gateway = of(configs);
        if (gateway.callbacks++ == 0) {
            gateway.start();
            gateway.bean = register(BrokerSettings.nodeOf(configs), gateway);
        }
        return gateway;
    }

    /** Ends a callback's use of a gateway: the last one closes it. */
    static synchronized void close(BrokerGateway gateway) {
        if (--gateway.callbacks == 0) {
            gateway.close();
            unregister(gateway.bean);
            NODES.values().remove(gateway);
        }
    }

    /** The name under which the gateway's metrics are now; null if they are nowhere. */
    private static ObjectName register(String id, BrokerGateway gateway) {
        try {
            ObjectName name = new ObjectName("sluice:type=gateway,node=" + id);
            ManagementFactory.getPlatformMBeanServer().registerMBean(gateway, name);
            return name;
        } catch (JMException error) { // as where another node of this process has the same id
            LOG.warn("Sluice can't register its metrics", error);
            return null;
        }
    }

    private static void unregister(ObjectName bean) {
        try {
            if (bean != null) {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(bean);
            }
        } catch (JMException error) {
            LOG.debug("Sluice's metrics weren't registered", error);
        }
    }
}
