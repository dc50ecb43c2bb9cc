package sluice.proxy;

import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.util.ReferenceCountUtil;
import java.util.ArrayDeque;
import java.util.Queue;

/**
 * Reads nothing from a client's connection while it is muted, as a broker does. Kroxylicious switches reading on and off for its
 * own reasons: the little that comes by that is kept. Where the client closes the connection, what it had sent is forgotten.
 */
final class Unread extends ChannelInboundHandlerAdapter {
    private final Queue<Object> kept = new ArrayDeque<>();
    private ChannelHandlerContext context;
    private boolean isMuted;

    @Override
    public void handlerAdded(ChannelHandlerContext added) {
        context = added;
    }

    void begin() {
        isMuted = true;
        context.channel().config().setAutoRead(false);
    }

    /** Reads again; later if `isLater`, when Kroxylicious reads on. What was kept may end in a mute again. */
    void end(boolean isLater) {
        isMuted = false;
        boolean hasKept = !kept.isEmpty();
        while (!isMuted && !kept.isEmpty()) {
            context.fireChannelRead(kept.remove());
        }
        if (hasKept) {
            context.fireChannelReadComplete();
        }
        if (!isMuted && !isLater) {
            context.channel().config().setAutoRead(true);
        }
    }

    @Override
    public void channelRead(ChannelHandlerContext from, Object message) {
        if (isMuted) {
            kept.add(message);
            from.channel().config().setAutoRead(false);
        } else {
            from.fireChannelRead(message);
        }
    }

    @Override
    public void channelInactive(ChannelHandlerContext from) {
        kept.forEach(ReferenceCountUtil::release);
        kept.clear();
        from.fireChannelInactive();
    }
}
