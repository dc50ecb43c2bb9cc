package sluice.kafka;

import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The gateway of each node in this process. Kafka makes the metrics reporter and the quota callback, for a node that is
 * broker and controller two of each, and tells them nothing of each other: they meet here.
 */
final class Nodes {
    private static final Logger LOG = LoggerFactory.getLogger(Nodes.class);
    private static final Map<String, Node> NODES = new HashMap<>();

    private Nodes() {}

    /** The gateway of the node that has this configuration. Throws ConfigException for one that can't be used. */
    static synchronized BrokerGateway of(Map<String, ?> configs) {
        return node(configs).gateway;
    }

    /** The same, for a callback: the first one starts the gateway. */
    static synchronized BrokerGateway open(Map<String, ?> configs) {
        Node node = node(configs);
        if (node.callbacks++ == 0) {
            node.gateway.start();
            register(BrokerSettings.nodeOf(configs), node.gateway);
        }
        return node.gateway;
    }

    /** Ends a callback's use of a gateway: the last one closes it. */
    static synchronized void close(BrokerGateway gateway) {
        for (Map.Entry<String, Node> each : NODES.entrySet()) {
            if (each.getValue().gateway == gateway && --each.getValue().callbacks == 0) {
                gateway.close();
                unregister(each.getKey());
                NODES.remove(each.getKey());
                return;
            }
        }
    }

    private static Node node(Map<String, ?> configs) {
        String id = BrokerSettings.nodeOf(configs);
        Node node = NODES.get(id);
        if (node == null) {
            node = new Node(new BrokerGateway(new BrokerSettings(configs)));
            NODES.put(id, node);
        }
        return node;
    }

    private static void register(String id, BrokerGateway gateway) {
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            if (!server.isRegistered(name(id))) {
                server.registerMBean(gateway, name(id));
            }
        } catch (JMException error) {
            LOG.warn("Sluice can't register its metrics", error);
        }
    }

    private static void unregister(String id) {
        try {
            ManagementFactory.getPlatformMBeanServer().unregisterMBean(name(id));
        } catch (JMException error) {
            LOG.debug("Sluice's metrics weren't registered", error);
        }
    }

    private static ObjectName name(String id) throws JMException {
        return new ObjectName("sluice:type=gateway,node=" + id);
    }

    private static final class Node {
        private final BrokerGateway gateway;
        private int callbacks;

        Node(BrokerGateway gateway) {
            this.gateway = gateway;
        }
    }
}
