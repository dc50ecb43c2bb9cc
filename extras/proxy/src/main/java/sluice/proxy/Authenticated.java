package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import java.lang.reflect.Method;
import java.util.Set;

/**
 * The user whom Kroxylicious has authenticated: where a filter before this one ends logins at the proxy, none passes by here.
 * 0.18.0 tells filters of it, and 0.12.0, which this is compiled against, doesn't.
 */
final class Authenticated {
    private static final Method SUBJECT = find();

    private Authenticated() {}

    /** The name; "" if Kroxylicious has authenticated nobody, or doesn't say. */
    static String userOf(FilterContext context) {
        try {
            Set<?> principals = SUBJECT == null
                    ? Set.of()
                    : (Set<?>) SUBJECT.getReturnType().getMethod("principals").invoke(SUBJECT.invoke(context));
            for (Object each : principals) {
                if (each.getClass().getName().equals("io.kroxylicious.proxy.authentication.User")) {
                    return (String) each.getClass().getMethod("name").invoke(each);
                }
            }
        } catch (ReflectiveOperationException error) {
            // as if it had authenticated nobody
        }
        return "";
    }

    private static Method find() {
        try {
            return FilterContext.class.getMethod("authenticatedSubject");
        } catch (NoSuchMethodException error) {
            return null;
        }
    }
}
