package sluice.proxy;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/**
 * The user of a connection, told by the SASL exchange that passes by once the broker has accepted it.
 *
 * <p>PLAIN, SCRAM and OAUTHBEARER name the user in what the client sends first. Of another mechanism, of a delegation
 * token (whose owner only brokers know) and of a bearer token that is no JSON web token nothing is known: the user is "".
 * Not for several threads.
 */
final class Login {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String CLAIM = "sub";

    private String mechanism = "";
    private String offered;
    private String user = "";

    /** The user that the broker accepted last; "" for none. */
    String user() {
        return user;
    }

    /** The client begins to log in, perhaps again. */
    void begin(String saslMechanism) {
        mechanism = saslMechanism;
        offered = null;
    }

    /** The client has sent a part of the exchange. */
    void send(byte[] part) {
        if (offered != null) {
            return; // the first part names the user
        }
        String text = new String(part, StandardCharsets.UTF_8);
        if (mechanism.equals("PLAIN")) {
            offered = ofPlain(text);
        } else if (mechanism.startsWith("SCRAM-")) {
            offered = ofScram(text);
        } else if (mechanism.equals("OAUTHBEARER")) {
            offered = ofBearer(text);
        } else {
            offered = "";
        }
    }

    /** The broker has answered a part without an error: the user is known if that ends the exchange. */
    void accept(byte[] answer) {
        if (offered == null) {
            return;
        }
        boolean isScram = mechanism.startsWith("SCRAM-");
        boolean isBearer = mechanism.equals("OAUTHBEARER"); // an answer with content is a refusal
        boolean isEnd = isScram ? answer.length > 1 && answer[0] == 'v' && answer[1] == '=' : !isBearer || answer.length == 0;
        if (isEnd) {
            user = offered;
            offered = null;
        }
    }

    /** `[authorization id] NUL user NUL password` (RFC 4616). */
    private static String ofPlain(String text) {
        String[] parts = text.split("\0", -1);
        return parts.length == 3 ? parts[1] : "";
    }

    /** `n,[a=authorization id],n=user,r=nonce,extensions` (RFC 5802). */
    private static String ofScram(String text) {
        String name = "";
        for (String part : text.split(",")) {
            if (part.startsWith("n=")) {
                name = part.substring(2).replace("=2C", ",").replace("=3D", "=");
            }
            if (part.equals("tokenauth=true")) {
                return "";
            }
        }
        return name;
    }

    /** `n,[a=authorization id],^Aauth=Bearer token^A^A` (RFC 7628): the claim `sub`, as Kafka takes it by default. */
    private static String ofBearer(String text) {
        for (String part : text.split("\1")) {
            if (part.regionMatches(true, 0, "auth=Bearer ", 0, 12)) {
                String[] token = part.substring(12).trim().split("\\.");
                return token.length < 2 ? "" : claimOf(token[1]);
            }
        }
        return "";
    }

    private static String claimOf(String payload) {
        try {
            JsonNode claims = JSON.readTree(Base64.getUrlDecoder().decode(payload));
            String name = claims.path(CLAIM).textValue();
            return name == null ? "" : name;
        } catch (IOException | IllegalArgumentException error) {
            return "";
        }
    }
}
