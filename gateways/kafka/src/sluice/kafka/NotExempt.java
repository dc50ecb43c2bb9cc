package sluice.kafka;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Clients that bear the client-id of Sluice's own and aren't exempt: a name in `sluice.exempt.principals` counts letter by
 * letter, so a misspelt one exempts nobody.
 *
 * <p>Any client may bear such a name, so a few principals are kept, with one line a minute each. Safe for any thread.
 */
final class NotExempt {
    static final int MOST = 5;
    private static final String NAME = "sluice";
    private static final long KEPT_MS = 60_000;
    private static final long AGAIN_MS = 60_000;

    private final String secret;
    private final Map<String, Client> clients = new HashMap<>(); // by principal

    /** `secret` is the part of client-ids that exempts clients without a login; null if there is none. */
    NotExempt(String secret) {
        this.secret = secret;
    }

    /** Whether a client-id is one that Sluice gives its clients. */
    boolean isOwn(String clientId) {
        return Exempt.begins(clientId, NAME) || Exempt.begins(clientId, secret);
    }

    /** Notes a request of such a client. Returns whether a line about it is due. */
    synchronized boolean note(String principal, String clientId, long nowMs) {
        clients.values().removeIf(client -> nowMs - client.seenMs > KEPT_MS);
        String name = Names.bounded(principal);
        Client known = clients.get(name);
        if (known == null && clients.size() >= MOST) {
            return false;
        }
        boolean isDue = known == null || nowMs - known.saidMs >= AGAIN_MS;
        clients.put(name, new Client(name, shown(clientId), nowMs, isDue ? nowMs : known.saidMs));
        return isDue;
    }

    /** A client-id without the secret, which exempts whoever knows it. */
    String shown(String clientId) {
        boolean isSecret = Exempt.begins(clientId, secret);
        return Names.bounded(isSecret ? "..." + clientId.substring(secret.length()) : clientId);
    }

    /** Those of the last minute, one for each principal. */
    synchronized List<Client> present(long nowMs) {
        clients.values().removeIf(client -> nowMs - client.seenMs > KEPT_MS);
        return new ArrayList<>(clients.values());
    }

    /** The next step for whoever sees that a client isn't exempt. */
    static String cure(String principal, Set<String> exempt) {
        return "User:ANONYMOUS".equals(principal)
                ? "naming User:ANONYMOUS would exempt all clients without a login: exempt Sluice's by sluice.exempt.client.id, or"
                        + " let them log in"
                : "if it is Sluice's, name exactly " + principal + " in sluice.exempt.principals, which has "
                        + (exempt.isEmpty() ? "nobody" : String.join(";", exempt));
    }

    /** A client by its principal, such as `User:sluice`, and the client-id that it had last. */
    static final class Client {
        final String principal;
        final String clientId;
        private final long seenMs;
        private final long saidMs;

        Client(String principal, String clientId, long seenMs, long saidMs) {
            this.principal = principal;
            this.clientId = clientId;
            this.seenMs = seenMs;
            this.saidMs = saidMs;
        }
    }
}
