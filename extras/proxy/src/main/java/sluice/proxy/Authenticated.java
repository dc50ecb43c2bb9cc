package sluice.proxy;

import io.kroxylicious.proxy.filter.FilterContext;
import java.lang.reflect.Method;
import java.util.Set;

/**
 * The user whom Kroxylicious has authenticated: where a filter before this one ends logins at the proxy, none passes by here.
 * 0.18.0 tells filters of it, and 0.12.0, which this is compiled against, doesn't.
 */
final class Authenticated {
    private static final Method SUBJECT = method(FilterContext.class, "authenticatedSubject");
    private static final Method PRINCIPALS = SUBJECT == null ? null : method(SUBJECT.getReturnType(), "principals");

    private Authenticated() {}

    /** The name; "" if Kroxylicious has authenticated nobody, or doesn't say. */
    static String userOf(FilterContext context) {
        try {
            Set<?> principals = PRINCIPALS == null ? Set.of() : (Set<?>) PRINCIPALS.invoke(SUBJECT.invoke(context));
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

    private static Method method(Class<?> of, String name) {
        try {
            return of.getMethod(name);
        } catch (NoSuchMethodException error) {
            return null;
        }
    }
}
