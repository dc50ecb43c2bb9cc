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
        if (clientId != null && theirClientId.startsWith(clientId) && KafkaPrincipal.ANONYMOUS.equals(principal)) {
            return theirClientId.length() == clientId.length() || theirClientId.charAt(clientId.length()) == '-';
        }
        return !principals.isEmpty() && principals.contains(principal.getPrincipalType() + ":" + principal.getName());
    }
}
