package sluice.proxy;

import io.netty.bootstrap.ChannelInitializerExtension;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOption;
import io.netty.channel.ServerChannel;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The most new connections of one address in each second; further ones are reset when they are accepted. Kroxylicious
 * opens a connection to a broker before a filter sees a request, so to refuse a flood costs as much as to serve it. Here
 * nobody knows who a client is.
 *
 * <p>Netty makes one for all ports that the proxy listens on, as a service, if `io.netty.bootstrap.extensions` is
 * `serviceload`.
 */
public final class AddressLimit extends ChannelInitializerExtension {
    /** How many connections were reset. */
    static final AtomicLong RESET = new AtomicLong();

    private final int most = Integer.getInteger("sluice.connections.per.address", Integer.MAX_VALUE);
    private final Map<String, Integer> accepted = new HashMap<>(); // in this second, by address
    private long second;

    @Override
    public void postInitializeServerListenerChannel(ServerChannel listener) {
        listener.pipeline().addFirst(new ChannelInboundHandlerAdapter() {
            @Override
            public void channelRead(ChannelHandlerContext context, Object message) {
                Channel connection = (Channel) message;
                if (admits(connection.remoteAddress(), System.nanoTime())) {
                    context.fireChannelRead(connection);
                    return;
                }
                RESET.incrementAndGet();
                connection.config().setOption(ChannelOption.SO_LINGER, 0);
                connection.unsafe().closeForcibly();
            }
        });
    }

    /** Whether one more connection of an address may come now; one that has ended already has none. */
    private synchronized boolean admits(SocketAddress address, long nowNs) {
        long present = TimeUnit.NANOSECONDS.toSeconds(nowNs);
        if (present != second) {
            second = present;
            accepted.clear();
        }
        return address instanceof InetSocketAddress client
                && accepted.merge(client.getAddress().getHostAddress(), 1, Integer::sum) <= most;
    }
}
