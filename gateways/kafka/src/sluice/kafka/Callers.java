package sluice.kafka;

/**
 * The user and the client-id that all requests of a meter had since the event before its last one, "" for one that differs
 * among them: a request is noted before it is charged, so its charge may be in the event after the next.
 *
 * <p>A name of more than 256 characters counts as one that differs. Safe for any thread.
 */
final class Callers {
    private volatile Tags now; // since the last event; null is nobody
    private Tags before;

    /** Notes who sent a request. Never waits where this is known. */
    void note(String user, String clientId) {
        Tags known = now;
        if (known == null || !isNoted(known.user, user) || !isNoted(known.clientId, clientId)) {
            add(of(user, clientId));
        }
    }

    /** These names, as far as they are kept. */
    static Tags of(String user, String clientId) {
        return new Tags(user.length() > Names.MAX_LENGTH ? "" : user, clientId.length() > Names.MAX_LENGTH ? "" : clientId);
    }

    /** Adds those of a sum that is given back. */
    synchronized void add(Tags callers) {
        now = both(now, callers);
    }

    /** Takes those of the next event. */
    synchronized Tags take() {
        Tags taken = both(before, now);
        before = now;
        now = null;
        return taken;
    }

    private static boolean isNoted(String known, String name) {
        return known.isEmpty() || known.equals(name);
    }

    /** What two have in common; null is nobody. */
    static Tags both(Tags one, Tags other) {
        if (one == null || other == null) {
            return one == null ? other : one;
        }
        String user = one.user.equals(other.user) ? one.user : "";
        return new Tags(user, one.clientId.equals(other.clientId) ? one.clientId : "");
    }
}
