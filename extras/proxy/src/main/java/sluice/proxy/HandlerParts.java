package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Parts of Kroxylicious' handler of one filter and connection, which are private in 0.12.0; where they aren't there, nothing is known. */
final class HandlerParts {
    private static final Logger LOG = LoggerFactory.getLogger(HandlerParts.class);

    private HandlerParts() {}

    /** The client's connection; null if nothing can be known. */
    static Channel channelOf(FilterContext context) {
        try {
            return channel(context);
        } catch (ReflectiveOperationException | RuntimeException error) {
            return null;
        }
    }

    /**
     * Whether the connection teaches a new proxy where brokers are: the first one to a broker's port. Kroxylicious asks for
     * Metadata then in place of its first request, and closes it.
     */
    static boolean isLearner(FilterContext context) {
        try {
            ChannelHandlerContext upstream = (ChannelHandlerContext) field(handler(context), "ctx");
            return upstream.pipeline().names().stream().anyMatch(name -> name.contains("EagerMetadataLearner"));
        } catch (ReflectiveOperationException | RuntimeException error) {
            return false;
        }
    }

    static Channel channel(FilterContext context) throws ReflectiveOperationException {
        return (Channel) field(handler(context), "inboundChannel");
    }

    /**
     * Lets a filter keep requests of this connection for so long; Kroxylicious closes the connection after 20 s else, which no
     * setting changes. Returns whether it could.
     */
    static boolean keepFor(long longestMs, FilterContext context, ScheduledExecutorService executor) {
        try {
            Object handler = handler(context);
            Field promises = handler.getClass().getDeclaredField("promiseFactory");
            Constructor<?> constructor = promises.getType()
                    .getDeclaredConstructor(ScheduledExecutorService.class, long.class, TimeUnit.class, String.class);
            promises.setAccessible(true);
            constructor.setAccessible(true);
            promises.set(handler, constructor.newInstance(executor, longestMs, TimeUnit.MILLISECONDS, LOG.getName()));
            return true;
        } catch (ReflectiveOperationException | RuntimeException error) {
            return false;
        }
    }

    private static Object handler(FilterContext context) throws ReflectiveOperationException {
        return field(context, "this$0");
    }

    private static Object field(Object of, String name) throws ReflectiveOperationException {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }
}
