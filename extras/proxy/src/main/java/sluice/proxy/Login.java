package sluice.proxy;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.message.ApiVersionsRequestData;
import org.apache.kafka.common.message.SaslAuthenticateRequestData;
import org.apache.kafka.common.message.SaslHandshakeRequestData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerClientInitialResponse;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFirstMessage;

/**
 * The user of a connection, told by the SASL exchange that passes by once the broker has accepted it. Messages are read by
 * Kafka's own parsers and rules, so that nobody can tell the broker one name and the proxy another.
 *
 * <p>Not for several threads.
 */
final class Login {
    /**
     * The user of a client that the broker has accepted while its messages say no name: of another mechanism, a delegation
     * token (whose owner only brokers know) and a bearer token that isn't a JSON web token with the claim `sub`.
     */
    static final String UNREADABLE = "unreadable-login";

    private static final String PLAIN = "PLAIN";
    private static final String BEARER = "OAUTHBEARER";
    private static final String CLAIM = "sub";
    private static final ObjectMapper JSON = new ObjectMapper();

    private String mechanism = ""; // none before the first handshake
    private String offered; // the name that the broker is about to accept or to refuse
    private boolean isAwaited; // a part of the exchange has no answer yet
    private String user = "";

    /** The user that the broker accepted last; "" for none. */
    String user() {
        return user;
    }

    /** The client sends a request. Returns why it can't go on, as nobody could say here who it is; null if it can. */
    String take(ApiMessage request, short version) {
        if (request instanceof SaslHandshakeRequestData handshake) {
            return begin(handshake.mechanism(), version);
        }
        if (request instanceof SaslAuthenticateRequestData authenticate) {
            return send(authenticate.authBytes());
        }
        boolean isUnderWay = !mechanism.isEmpty() && user.isEmpty();
        return isUnderWay && !(request instanceof ApiVersionsRequestData)
                ? "it sends requests before its login is answered"
                : null;
    }

    /** The client begins to log in, perhaps again. Returns why it can't; null if it can. */
    String begin(String saslMechanism, short version) {
        if (version < 1) {
            return "SaslHandshake version 0 announces a login outside of requests, which no proxy can read; use"
                    + " kafka-python 2.1, Sarama 1.41 or newer, or let the client log in at a broker with the plugin";
        }
        if (isAwaited) {
            return "it begins another login before its last one is answered";
        }
        mechanism = saslMechanism;
        offered = null;
        return null;
    }

    /** The client sends a part of the exchange. Returns why it can't; null if it can. */
    String send(byte[] part) {
        if (isAwaited) {
            return "it goes on with its login before the last part is answered";
        }
        isAwaited = true;
        if (isScram() && offered != null) {
            return null; // the first part has named the user
        }
        try {
            offered = nameIn(part);
            return null;
        } catch (StackOverflowError error) { // the expressions by which Kafka reads messages take a frame for each part
            return "a message of its login has too many parts";
        }
    }

    /** The broker has answered a part without an error: the user is known if that ends the exchange. */
    void accept(byte[] answer) {
        isAwaited = false;
        boolean isEnd = isScram()
                ? answer.length > 1 && answer[0] == 'v' && answer[1] == '='
                : !BEARER.equals(mechanism) || answer.length == 0; // one with content refuses the token
        if (isEnd && offered != null) {
            user = offered;
        }
        if (isEnd || !isScram()) {
            offered = null;
        }
    }

    /** The broker has refused a part. */
    void refuse() {
        isAwaited = false;
        offered = null;
    }

    private boolean isScram() {
        return ScramMechanism.isScram(mechanism);
    }

    private String nameIn(byte[] part) {
        try {
            String name = PLAIN.equals(mechanism)
                    ? ofPlain(part)
                    : BEARER.equals(mechanism) ? ofBearer(part) : isScram() ? ofScram(part) : UNREADABLE;
            return name.isEmpty() ? UNREADABLE : name;
        } catch (IOException | RuntimeException error) { // what Kafka's parsers refuse has no name
            return UNREADABLE;
        }
    }

    /** `[authorization id] NUL user NUL password` (RFC 4616), as `PlainSaslServer` takes it. */
    private static String ofPlain(byte[] part) {
        String[] tokens = new String(part, StandardCharsets.UTF_8).split("\0", -1);
        boolean isWhole = tokens.length == 3 && !tokens[2].isEmpty();
        return isWhole && isNobodyElse(tokens[0], tokens[1]) ? tokens[1] : UNREADABLE;
    }

    private static String ofScram(byte[] part) throws IOException {
        ClientFirstMessage first = new ClientFirstMessage(part);
        String name = ScramFormatter.username(first.saslName());
        boolean isToken = first.extensions().tokenAuthenticated();
        return !isToken && isNobodyElse(first.authorizationId(), name) ? name : UNREADABLE;
    }

    /** The claim `sub` of a JSON web token, as Kafka's validators take it. */
    private static String ofBearer(byte[] part) throws IOException {
        OAuthBearerClientInitialResponse response = new OAuthBearerClientInitialResponse(part);
        String[] token = response.tokenValue().split("\\.", -1);
        if (token.length != 3) {
            return UNREADABLE;
        }
        JsonNode claim = JSON.readTree(Base64.getUrlDecoder().decode(token[1])).path(CLAIM);
        if (!claim.isValueNode() || claim.isNumber()) {
            return UNREADABLE;
        }
        boolean isSigned = !token[2].isEmpty();
        String name = isSigned ? claim.asText().trim() : claim.asText();
        return isNobodyElse(response.authorizationId(), name) ? name : UNREADABLE;
    }

    private static boolean isNobodyElse(String authorizationId, String name) {
        return authorizationId.isEmpty() || authorizationId.equals(name);
    }
}
