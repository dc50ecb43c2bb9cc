package sluice.kafka;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.security.auth.KafkaPrincipal;

/**
 * The clients of Sluice itself, which no quota may hold: they carry what quotas depend on. Some bear the client-id of Sluice's own
 * and aren't exempt: a name in `sluice.exempt.principals` counts letter by letter, so a misspelt one exempts nobody.
 *
 * <p>Any client may bear such a name, so a few principals are kept, with one line a minute each. Safe for any thread.
 */
final class OwnClients {
    static final int MOST = 5;
    private static final String NAME = "sluice";
    private static final long KEPT_MS = 60_000;
    private static final long AGAIN_MS = 60_000;

    private final Set<String> principals;
    private final String secret;
    private final Map<String, NotExempt> notExempt = new HashMap<>(); // by principal

    /** `principals` are exempt; `secret` is the part of client-ids that exempts clients without a login, null if there is none. */
    OwnClients(Set<String> principals, String secret) {
        this.principals = principals;
        this.secret = secret;
    }

    /** Whether a client is exempt, by its principal or, if it has not logged in, by the secret part of its client-id. */
    boolean isExempt(KafkaPrincipal principal, String clientId) {
        if (begins(clientId, secret) && KafkaPrincipal.ANONYMOUS.equals(principal)) {
            return true;
        }
        return !principals.isEmpty() && principals.contains(principal.getPrincipalType() + ":" + principal.getName());
    }

    /** Whether a client-id is one that Sluice gives its clients, where some are meant to be exempt. */
    boolean isOwn(String clientId) {
        boolean isExemptionMeant = !principals.isEmpty() || secret != null;
        return isExemptionMeant && (begins(clientId, NAME) || begins(clientId, secret));
    }

    /** Notes a request of one that isn't exempt. Returns whether a line about it is due. */
    synchronized boolean noteNotExempt(String principal, String clientId, long nowMs) {
        notExempt.values().removeIf(client -> nowMs - client.seenMs > KEPT_MS);
        String name = Names.bounded(principal);
        NotExempt known = notExempt.get(name);
        if (known == null && notExempt.size() >= MOST) {
            return false;
        }
        boolean isDue = known == null || nowMs - known.saidMs >= AGAIN_MS;
        notExempt.put(name, new NotExempt(name, shown(clientId), nowMs, isDue ? nowMs : known.saidMs));
        return isDue;
    }

    /** A client-id without the secret, which exempts whoever knows it. */
    String shown(String clientId) {
        boolean isSecret = begins(clientId, secret);
        return Names.bounded(isSecret ? "..." + clientId.substring(secret.length()) : clientId);
    }

    /** Those of the last minute that weren't exempt, one for each principal. */
    synchronized List<NotExempt> notExempt(long nowMs) {
        notExempt.values().removeIf(client -> nowMs - client.seenMs > KEPT_MS);
        return new ArrayList<>(notExempt.values());
    }

    /** The next step for whoever sees that a client isn't exempt. */
    String cure(String principal) {
        return "User:ANONYMOUS".equals(principal)
                ? "naming User:ANONYMOUS would exempt all clients without a login: exempt Sluice's by sluice.exempt.client.id, or"
                        + " let them log in"
                : "if it is Sluice's, name exactly " + principal + " in sluice.exempt.principals, which has "
                        + (principals.isEmpty() ? "nobody" : String.join(";", principals));
    }

    /** Whether a client-id is this one, or begins with it and a hyphen; no client-id begins with null. */
    private static boolean begins(String clientId, String with) {
        boolean begins = with != null && clientId.startsWith(with);
        return begins && (clientId.length() == with.length() || clientId.charAt(with.length()) == '-');
    }

    /** A client by its principal, such as `User:sluice`, and the client-id that it had last. */
    static final class NotExempt {
        final String principal;
        final String clientId;
        private final long seenMs;
        private final long saidMs;

        NotExempt(String principal, String clientId, long seenMs, long saidMs) {
            this.principal = principal;
            this.clientId = clientId;
            this.seenMs = seenMs;
            this.saidMs = saidMs;
        }
    }
}
