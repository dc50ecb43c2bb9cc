package sluice.proxy;

import io.kroxylicious.proxy.authentication.Principal;
import io.kroxylicious.proxy.authentication.Subject;
import io.kroxylicious.proxy.authentication.User;
import io.kroxylicious.proxy.filter.FilterContext;

/** Checks whom the proxy takes for the user by the subject that Kroxylicious gives a filter. */
public final class SubjectOfLogin {
    /** A principal of another kind, such as a group that a plugin of Kroxylicious adds. */
    record Group(String name) implements Principal {}

    public static void main(String[] arguments) {
        check("alice", new Subject(new User("alice"), new Group("engineers")));
        check("", Subject.anonymous());
    }

    private static void check(String expected, Subject subject) {
        FilterContext context = (FilterContext) java.lang.reflect.Proxy.newProxyInstance(
                SubjectOfLogin.class.getClassLoader(), new Class<?>[] {FilterContext.class}, (self, method, given) -> subject);
        String found = Authenticated.userOf(context);
        if (!found.equals(expected)) {
            throw new AssertionError(found + " is taken for the user of " + subject);
        }
    }
}
