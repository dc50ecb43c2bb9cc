package sluice.broker;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.sasl.SaslServer;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerSaslServer;
import org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler;
import org.apache.kafka.common.security.plain.PlainAuthenticateCallback;
import org.apache.kafka.common.security.plain.internals.PlainSaslServer;
import org.apache.kafka.common.security.scram.ScramCredential;
import org.apache.kafka.common.security.scram.ScramCredentialCallback;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFinalMessage;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFirstMessage;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ServerFirstMessage;
import org.apache.kafka.common.security.scram.internals.ScramSaslServer;
import org.apache.kafka.common.security.token.delegation.internals.DelegationTokenCredentialCallback;

/**
 * The broker's side of an exchange: Kafka's own `SaslServer`s, for which any name is a user and any password is right.
 *
 * <p>It is loaded with the jars of a broker, whose Kafka isn't the proxy's, so all that it is asked and answers is of Java's
 * own types: of a mechanism and the first messages, each message with its answer, and at last the name that was accepted.
 */
public final class BrokerLogin implements BiFunction<String, List<byte[]>, List<Object>> {
    private static final String OWNER = "owner of "; // of a delegation token: its name is this and the token's id
    private static final int ITERATIONS = 4_096;
    private static final byte[] SALT = {1, 2, 3, 4, 5, 6, 7, 8};

    private final Map<String, Scram> scram = Map.of(
            "SCRAM-SHA-256", new Scram(ScramMechanism.SCRAM_SHA_256),
            "SCRAM-SHA-512", new Scram(ScramMechanism.SCRAM_SHA_512));
    private final OAuthBearerUnsecuredValidatorCallbackHandler validator = new OAuthBearerUnsecuredValidatorCallbackHandler();

    public BrokerLogin() {
        String module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule";
        validator.configure(
                Map.of(),
                "OAUTHBEARER",
                List.of(new AppConfigurationEntry(module, AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, Map.of())));
    }

    /** The name is null if no message, or what followed it, was accepted. */
    @Override
    public List<Object> apply(String mechanism, List<byte[]> messages) {
        List<Object> passed = new ArrayList<>();
        String name = null;
        try {
            SaslServer server = server(mechanism);
            for (byte[] message : messages) {
                byte[] answer = evaluate(server, message, passed);
                if (scram.containsKey(mechanism) && !server.isComplete()) {
                    evaluate(server, scram.get(mechanism).last(message, answer), passed);
                }
                if (server.isComplete()) {
                    name = server.getAuthorizationID();
                    break;
                }
            }
        } catch (Exception error) { // a broker ends the connection
            passed.add(null);
        }
        passed.add(name);
        return passed;
    }

    private SaslServer server(String mechanism) throws Exception {
        switch (mechanism) {
            case "PLAIN":
                return new PlainSaslServer(BrokerLogin::admit);
            case "OAUTHBEARER":
                return new OAuthBearerSaslServer(validator);
            default:
                return new ScramSaslServer(scram.get(mechanism).mechanism, Map.of(), scram.get(mechanism)::admit);
        }
    }

    private static byte[] evaluate(SaslServer server, byte[] message, List<Object> passed) throws Exception {
        passed.add(message);
        byte[] answer = server.evaluateResponse(message);
        passed.add(answer);
        return answer;
    }

    private static void admit(Callback[] callbacks) {
        for (Callback each : callbacks) {
            if (each instanceof PlainAuthenticateCallback) {
                ((PlainAuthenticateCallback) each).authenticated(true);
            }
        }
    }

    /** A mechanism, and the credential that all users and tokens have. */
    private static final class Scram {
        private final ScramMechanism mechanism;
        private final ScramFormatter formatter;
        private final byte[] saltedPassword;
        private final ScramCredential credential;

        Scram(ScramMechanism mechanism) {
            try {
                this.mechanism = mechanism;
                formatter = new ScramFormatter(mechanism);
                saltedPassword = formatter.saltedPassword("password", SALT, ITERATIONS);
                credential = formatter.generateCredential(SALT, saltedPassword, ITERATIONS);
            } catch (GeneralSecurityException error) {
                throw new IllegalStateException(error);
            }
        }

        void admit(Callback[] callbacks) {
            String name = ((NameCallback) callbacks[0]).getDefaultName();
            if (callbacks[1] instanceof DelegationTokenCredentialCallback) {
                ((DelegationTokenCredentialCallback) callbacks[1]).tokenOwner(OWNER + name);
            }
            ((ScramCredentialCallback) callbacks[1]).scramCredential(credential);
        }

        /** The client's last message, which proves that it knows the password. */
        byte[] last(byte[] first, byte[] answer) throws Exception {
            ServerFirstMessage challenge = new ServerFirstMessage(answer);
            ClientFinalMessage last = new ClientFinalMessage("n,,".getBytes(StandardCharsets.UTF_8), challenge.nonce());
            last.proof(formatter.clientProof(saltedPassword, new ClientFirstMessage(first), challenge, last));
            return last.toBytes();
        }
    }
}
