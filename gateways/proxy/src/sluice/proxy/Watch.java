package sluice.proxy;

import io.netty.channel.ChannelDuplexHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelPromise;
import io.netty.handler.ssl.SslHandshakeCompletionEvent;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** Watches one connection to a broker until its first answer, and tells {@link Reach} of that or of the failure. */
final class Watch extends ChannelDuplexHandler {
    private static final long SILENCE_S = 10;

    private final Reach reach;
    private String server = "a broker"; // until its name is known
    private ChannelPromise connected;
    private boolean isNoted;
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
    public void channelActive(ChannelHandlerContext context) throws Exception {
        silence = context.executor().schedule(() -> fail("takes connections and answers nothing"), SILENCE_S, TimeUnit.SECONDS);
        super.channelActive(context);
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
        fail("gives no answer that can be read (" + cause.getMessage() + "); has it another security.protocol?");
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
        fail("ends connections without an answer; has it another security.protocol?");
        super.channelInactive(context);
    }

    private void failIfUnconnected() {
        if (connected != null && connected.cause() != null) {
            fail("can't be connected to (" + connected.cause().getMessage() + ")");
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
