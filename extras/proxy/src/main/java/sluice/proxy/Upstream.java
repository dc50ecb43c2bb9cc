package sluice.proxy;

import io.kroxylicious.proxy.internal.net.BootstrapEndpointBinding;
import io.kroxylicious.proxy.internal.net.BrokerEndpointBinding;
import io.kroxylicious.proxy.internal.net.EndpointBinding;
import io.kroxylicious.proxy.internal.net.EndpointGateway;
import io.kroxylicious.proxy.service.HostPort;
import io.netty.bootstrap.ChannelInitializerExtension;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.util.AttributeKey;
import io.netty.util.concurrent.FastThreadLocal;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The way to the brokers. Kroxylicious takes it to the first of `bootstrap.servers` alone, for each connection that isn't meant
 * for a broker it knows: while that one is away no new client would get in. Here it is the next one in turn that hasn't just
 * failed. And it watches what becomes of the connections to brokers. Kroxylicious forgets one that comes to be when its client
 * is gone already: here each ends after its client.
 *
 * <p>Netty makes one for all ports that the proxy listens on, as {@link AcceptLimit}.
 */
public final class Upstream extends ChannelInitializerExtension {
    private static final int CONNECT_TIMEOUT_MS = 3_000; // clients wait for their answer meanwhile; Netty's is 30 s

    private static final long AFTER_CLIENT_S = 5; // Kroxylicious closes it first, once all is sent

    /** The client whose bytes this event loop reads now: its first request makes the connection to the broker. */
    private static final FastThreadLocal<Channel> CLIENT = new FastThreadLocal<>();

    private final Reach reach = new Reach(System.out::println);
    private final AtomicInteger turn = new AtomicInteger();

    @Override
    public void postInitializeServerChildChannel(Channel client) {
        // by its name, because EndpointRegistry, which has made it, keeps it to itself
        Map<Object, EndpointBinding> bindings =
                client.parent().attr(AttributeKey.<Map<Object, EndpointBinding>>valueOf("channelBindings")).get();
        if (bindings != null) { // those of the port that clients connect to, not of the metrics
            bindings.replaceAll((name, binding) -> redirected(binding));
            client.pipeline().addFirst(new ChannelInboundHandlerAdapter() {
                @Override
                public void channelRead(ChannelHandlerContext context, Object message) {
                    CLIENT.set(client);
                    try {
                        context.fireChannelRead(message);
                    } finally {
                        CLIENT.remove();
                    }
                }
            });
        }
    }

    @Override
    public void postInitializeClientChannel(Channel broker) {
        broker.config().setConnectTimeoutMillis(CONNECT_TIMEOUT_MS);
        broker.pipeline().addFirst(new Watch(reach));
        Channel client = CLIENT.get();
        if (client != null) {
            client.closeFuture().addListener(closed ->
                    client.eventLoop().schedule(() -> broker.close(), AFTER_CLIENT_S, TimeUnit.SECONDS));
        }
    }

    private EndpointBinding redirected(EndpointBinding binding) {
        EndpointGateway gateway = binding.endpointGateway();
        if (binding instanceof BootstrapEndpointBinding) {
            return new BootstrapEndpointBinding(gateway, next(gateway));
        }
        if (binding instanceof BrokerEndpointBinding broker && broker.restrictUpstreamToMetadataDiscovery()) {
            return new BrokerEndpointBinding(gateway, next(gateway), broker.nodeId(), true);
        }
        return binding;
    }

    private HostPort next(EndpointGateway gateway) {
        List<HostPort> servers = gateway.targetCluster().bootstrapServersList();
        reach.setServers(servers);
        for (int tries = 1; tries < servers.size(); tries++) {
            HostPort server = inTurn(servers);
            if (!reach.hasJustFailed(server, System.nanoTime()) && hasAddress(server)) {
                return server;
            }
        }
        HostPort last = inTurn(servers);
        hasAddress(last);
        return last;
    }

    /** Kroxylicious asks for the address next, and says nobody that there is none. */
    private boolean hasAddress(HostPort server) {
        boolean isKnown = !new InetSocketAddress(server.host(), server.port()).isUnresolved();
        if (!isKnown) {
            reach.noteFailure(Reach.name(server), "has a name without an address", System.nanoTime());
        }
        return isKnown;
    }

    private HostPort inTurn(List<HostPort> servers) {
        return servers.get(Math.floorMod(turn.getAndIncrement(), servers.size()));
    }
}
