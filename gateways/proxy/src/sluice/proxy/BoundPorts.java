package sluice.proxy;

import com.fasterxml.jackson.annotation.JsonProperty;
import io.kroxylicious.proxy.plugin.Plugin;
import io.kroxylicious.proxy.service.ClusterNetworkAddressConfigProvider;
import io.kroxylicious.proxy.service.ClusterNetworkAddressConfigProviderService;
import io.kroxylicious.proxy.service.HostPort;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Addresses of a proxy on one network interface: one port for all brokers, and behind it one for each. Kroxylicious's own
 * `portIdentifiesNode` listens on all interfaces.
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
        private final Config config;
        private final Map<Integer, HostPort> nodes = new HashMap<>();

        Provider(Config config) {
            this.config = config;
            for (int place = 0; place < config.nodeIds().size(); place++) {
                nodes.put(config.nodeIds().get(place), new HostPort(config.host(), config.port() + 1 + place));
            }
        }

        @Override
        public HostPort getClusterBootstrapAddress() {
            return new HostPort(config.host(), config.port());
        }

        @Override
        public HostPort getBrokerAddress(int nodeId) {
            HostPort address = nodes.get(nodeId);
            if (address == null) {
                throw new IllegalArgumentException("broker " + nodeId + " has no port; start the proxy again");
            }
            return address;
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
    }
}
