package sluice.proxy;

import com.fasterxml.jackson.annotation.JsonProperty;
import io.kroxylicious.proxy.plugin.Plugin;
import io.kroxylicious.proxy.service.ClusterNetworkAddressConfigProvider;
import io.kroxylicious.proxy.service.ClusterNetworkAddressConfigProviderService;
import io.kroxylicious.proxy.service.HostPort;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.UnknownHostException;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Addresses of a proxy on one network interface: one port for all brokers, and behind it one for each, that of node 0 first.
 * So a node keeps its port whoever else is there, and one that comes later gets it then. Where its port is taken or beyond the
 * last one, it gets a free one: without any, Kroxylicious would tell clients of no broker at all.
 *
 * <p>Kroxylicious's own `portIdentifiesNode` listens on all interfaces.
 */
@SuppressWarnings({"deprecation", "removal"}) // nothing else in this version knows an address to bind to
@Plugin(configType = BoundPorts.Config.class)
public final class BoundPorts implements ClusterNetworkAddressConfigProviderService<BoundPorts.Config> {
    @Override
    public ClusterNetworkAddressConfigProvider build(Config config) {
        return new Provider(config);
    }

    /** `host` is what clients connect to and `bindAddress` the interface's address; null is all interfaces. */
    public record Config(
            @JsonProperty(required = true) String host,
            @JsonProperty(required = true) int port,
            @JsonProperty String bindAddress,
            @JsonProperty(required = true) List<Integer> nodeIds) {}

    private static final class Provider implements ClusterNetworkAddressConfigProvider {
        private static final Logger LOG = LoggerFactory.getLogger(BoundPorts.class);
        private static final int LAST_PORT = 65_535;

        private final Config config;
        private final Map<Integer, HostPort> nodes = new ConcurrentHashMap<>();

        Provider(Config config) {
            this.config = config;
            config.nodeIds().forEach(node -> nodes.put(node, address(node, true)));
        }

        @Override
        public HostPort getClusterBootstrapAddress() {
            return new HostPort(config.host(), config.port());
        }

        @Override
        public HostPort getBrokerAddress(int nodeId) {
            return nodes.computeIfAbsent(nodeId, node -> address(node, false));
        }

        @Override
        public Optional<String> getBindAddress() {
            return Optional.ofNullable(config.bindAddress());
        }

        @Override
        public Set<Integer> getExclusivePorts() {
            Set<Integer> ports = new HashSet<>(Set.of(config.port()));
            nodes.values().forEach(address -> ports.add(address.port()));
            return ports;
        }

        @Override
        public Map<Integer, HostPort> discoveryAddressMap() {
            return nodes;
        }

        /** One that is known at the start has its port or the proxy doesn't start: others reach it there alone. */
        private HostPort address(int node, boolean isFirst) {
            long port = config.port() + 1L + node;
            if (port <= LAST_PORT && (isFirst || isFree((int) port))) {
                return new HostPort(config.host(), (int) port);
            }
            try (ServerSocket free = new ServerSocket(0, 1, interfaceAddress())) {
                LOG.warn("broker {} has port {} until the proxy ends, as {} is taken or no port", node, free.getLocalPort(), port);
                return new HostPort(config.host(), free.getLocalPort());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private boolean isFree(int port) {
            try (ServerSocket probe = new ServerSocket()) {
                probe.setReuseAddress(true);
                probe.bind(new InetSocketAddress(interfaceAddress(), port));
                return true;
            } catch (IOException error) {
                return false;
            }
        }

        /** Null for all interfaces. */
        private InetAddress interfaceAddress() throws UnknownHostException {
            return config.bindAddress() == null ? null : InetAddress.getByName(config.bindAddress());
        }
    }
}
