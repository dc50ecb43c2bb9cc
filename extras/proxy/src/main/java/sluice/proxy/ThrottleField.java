package sluice.proxy;

import java.lang.reflect.Method;
import org.apache.kafka.common.protocol.ApiMessage;

/** The field `throttle_time_ms` of responses, which most of Kafka's generated classes have. */
final class ThrottleField {
    private static final ClassValue<Accessors> ACCESSORS = new ClassValue<>() {
        @Override
        protected Accessors computeValue(Class<?> type) {
            try {
                return new Accessors(type.getMethod("throttleTimeMs"), type.getMethod("setThrottleTimeMs", int.class));
            } catch (NoSuchMethodException error) {
                return new Accessors(null, null);
            }
        }
    };

    private ThrottleField() {}

    /** Sets it, if the response has it and the broker didn't ask for a longer wait. An old version doesn't carry it. */
    static void raise(ApiMessage response, int throttleMs) {
        Accessors found = ACCESSORS.get(response.getClass());
        try {
            if (found.get() != null && (int) found.get().invoke(response) < throttleMs) {
                found.set().invoke(response, throttleMs);
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private record Accessors(Method get, Method set) {}
}
