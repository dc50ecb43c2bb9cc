package sluice.proxy;

import com.sun.management.UnixOperatingSystemMXBean;
import io.netty.bootstrap.ChannelInitializerExtension;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOption;
import io.netty.channel.ServerChannel;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The most connections that a proxy accepts: new ones in each second, and open ones. Further ones are reset at once.
 * Kroxylicious opens a connection to a broker before a filter sees a request, so to refuse a flood there costs as much
 * as to serve it; and once no file descriptor is left, Netty accepts nobody for a second. Here nobody knows who a
 * client is: addresses share.
 *
 * <p>Netty makes one for all ports that the proxy listens on, as a service, if `io.netty.bootstrap.extensions` is
 * `serviceload`.
 */
public final class AcceptLimit extends ChannelInitializerExtension {
    /** How many connections were reset. */
    static final AtomicLong RESET = new AtomicLong();

    private static final int PER_CORE = 500;
    private static final int OWN_DESCRIPTORS = 200; // jars, the log, ports, and connections of the proxy's own clients

    private static final int NETWORK_BYTES = 8;

    private final FairRoom<ByteBuffer> fresh = new FairRoom<>(Integer.getInteger(
            "sluice.connections.per.s", PER_CORE * Runtime.getRuntime().availableProcessors()));
    private final FairRoom<ByteBuffer> open = new FairRoom<>(mostOpen());
    private volatile long second;

    @Override
    public void postInitializeServerListenerChannel(ServerChannel listener) {
        listener.pipeline().addFirst(new ChannelInboundHandlerAdapter() {
            @Override
            public void channelRead(ChannelHandlerContext context, Object message) {
                Channel connection = (Channel) message;
                if (connection.remoteAddress() instanceof InetSocketAddress client
                        && admits(client.getAddress(), System.nanoTime())) {
                    connection.closeFuture().addListener(closed -> open.giveBack(network(client.getAddress()), 1));
                    context.fireChannelRead(connection);
                    return;
                }
                RESET.incrementAndGet();
                connection.config().setOption(ChannelOption.SO_LINGER, 0);
                connection.unsafe().closeForcibly();
            }
        });
    }

    private boolean admits(InetAddress address, long nowNs) {
        long present = TimeUnit.NANOSECONDS.toSeconds(nowNs);
        if (present != second) {
            second = present;
            fresh.clear();
        }
        return fresh.take(network(address), 1) && open.take(network(address), 1);
    }

    /** All of an IPv6 network of 64 bits count as one address: a host has as many as it likes of one. */
    static ByteBuffer network(InetAddress address) {
        byte[] bytes = address.getAddress();
        return ByteBuffer.wrap(bytes, 0, Math.min(bytes.length, NETWORK_BYTES));
    }

    /** A client's connection takes two file descriptors: its own, and that of the connection to a broker. */
    private static int mostOpen() {
        long descriptors = ManagementFactory.getOperatingSystemMXBean() instanceof UnixOperatingSystemMXBean system
                ? system.getMaxFileDescriptorCount()
                : Integer.MAX_VALUE;
        return (int) Math.max(1, Math.min(Integer.MAX_VALUE, (descriptors - OWN_DESCRIPTORS) / 2));
    }
}
