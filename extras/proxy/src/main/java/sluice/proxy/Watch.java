package sluice.proxy;

import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.handler.ssl.SslHandshakeCompletionEvent;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.message.ApiVersionsRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.requests.RequestHeader;

/**
 * Watches one connection to a broker until its first answer, and tells {@link Reach} of that or of the failure.
 *
 * <p>What a client sends decides whether a broker answers it. So silence and an end are a fault of the broker only after a
 * first request that each broker answers on each listener, before a login too: ApiVersions, read by Kafka's own parser. That
 * no connection can be made is one whatever the client sends.
 */
final class Watch extends ChannelDuplexHandler {
    private static final long SILENCE_S = 10;

    private final Reach reach;
    private String server = "a broker"; // until its name is known
    private ChannelPromise connected;
    private boolean isNoted;
    private boolean isBegun; // something is on its way to the broker
    private boolean isDue; // an answer, of any broker
    private ScheduledFuture<?> silence;

    Watch(Reach reach) {
        this.reach = reach;
    }

    @Override
    public void connect(ChannelHandlerContext context, SocketAddress remote, SocketAddress local, ChannelPromise promise)
            throws Exception {
        if (remote instanceof InetSocketAddress address) {
            server = Reach.name(address.getHostString(), address.getPort());
        }
        connected = promise;
        promise.addListener(done -> failIfUnconnected());
        super.connect(context, remote, local, promise);
    }

    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) throws Exception {
        if (!isBegun && message instanceof ByteBuf request) {
            isBegun = true;
            isDue = isAnsweredByAny(request.nioBuffer());
            if (isDue) {
                silence = context.executor()
                        .schedule(() -> fail("takes connections and answers nothing"), SILENCE_S, TimeUnit.SECONDS);
            }
        }
        super.write(context, message, promise);
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) throws Exception {
        if (!isNoted) {
            end();
            reach.noteAnswer(server, System.nanoTime());
        }
        super.channelRead(context, message);
    }

    @Override
    public void userEventTriggered(ChannelHandlerContext context, Object event) throws Exception {
        if (event instanceof SslHandshakeCompletionEvent handshake && !handshake.isSuccess()) {
            fail("can't be connected to by TLS (" + handshake.cause().getMessage() + ")");
        }
        super.userEventTriggered(context, event);
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) throws Exception {
        failIfDue("gives no answer that can be read (" + cause.getMessage() + "); has it another security.protocol?");
        super.exceptionCaught(context, cause);
    }

    /** The proxy ends it, as it does when its client is gone, and at once when there is no connection. */
    @Override
    public void close(ChannelHandlerContext context, ChannelPromise promise) throws Exception {
        failIfUnconnected();
        end();
        super.close(context, promise);
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) throws Exception {
        failIfDue("ends connections without an answer; has it another security.protocol?");
        super.channelInactive(context);
    }

    /** A connection that the proxy itself has given up, as its client is gone, has no other cause. */
    private void failIfUnconnected() {
        if (connected != null && connected.cause() != null && !(connected.cause() instanceof ClosedChannelException)) {
            fail("can't be connected to (" + connected.cause().getMessage() + ")");
        }
    }

    private void failIfDue(String cause) {
        if (isDue) {
            fail(cause);
        }
    }

    /** True if this is the whole of one request for the versions of APIs, after the length of its frame. */
    static boolean isAnsweredByAny(ByteBuffer frame) {
        try {
            if (frame.getInt() != frame.remaining()) {
                return false;
            }
            RequestHeader header = RequestHeader.parse(frame);
            if (header.apiKey() != ApiKeys.API_VERSIONS) {
                return false;
            }
            new ApiVersionsRequestData(new ByteBufferAccessor(frame), header.apiVersion());
            return !frame.hasRemaining();
        } catch (RuntimeException error) { // no request
            return false;
        }
    }

    private void fail(String cause) {
        if (!isNoted) {
            end();
            reach.noteFailure(server, cause, System.nanoTime());
        }
    }

    private void end() {
        isNoted = true;
        if (silence != null) {
            silence.cancel(false);
        }
    }
}
