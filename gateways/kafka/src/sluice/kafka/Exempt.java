package sluice.kafka;

import java.util.Set;
import org.apache.kafka.common.security.auth.KafkaPrincipal;

/** The clients of Sluice itself, which no quota may hold: they carry what quotas depend on. */
final class Exempt {
    private final Set<String> principals;
    private final String clientId;

    Exempt(Set<String> principals, String clientId) {
        this.principals = principals;
        this.clientId = clientId;
    }

    /** Whether a client is exempt, by its principal or, if it has not logged in, by the secret part of its client-id. */
    boolean isExempt(KafkaPrincipal principal, String theirClientId) {
        if (begins(theirClientId, clientId) && KafkaPrincipal.ANONYMOUS.equals(principal)) {
            return true;
        }
        return !principals.isEmpty() && principals.contains(principal.getPrincipalType() + ":" + principal.getName());
    }

    /** Whether a client-id is this one, or begins with it and a hyphen; no client-id begins with null. */
    static boolean begins(String clientId, String with) {
        boolean begins = with != null && clientId.startsWith(with);
        return begins && (clientId.length() == with.length() || clientId.charAt(with.length()) == '-');
    }
}
