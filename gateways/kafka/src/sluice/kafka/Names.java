package sluice.kafka;

import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/** Names in tags, which clients choose: of bounded length, the same in all gateways and in the job. */
final class Names {
    /** A longer name counts under its hash. */
    static final int MAX_LENGTH = 256;

    private Names() {}

    /** The name, or a hash of one with more than 256 Unicode characters; `bounded_name` of state/quotas/entity.py. */
    static String bounded(String name) {
        if (name.length() <= MAX_LENGTH || name.codePointCount(0, name.length()) <= MAX_LENGTH) {
            return name;
        }
        try {
            StringBuilder hash = new StringBuilder("sha256:");
            for (byte part : MessageDigest.getInstance("SHA-256").digest(name.getBytes(StandardCharsets.UTF_8))) {
                hash.append(Character.forDigit(part >> 4 & 0xf, 16)).append(Character.forDigit(part & 0xf, 16));
            }
            return hash.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java has it
        }
    }

    /** Text for a log: what is invisible or ends a line is escaped, as a client or an operator may have chosen it. */
    static String printable(String text) {
        StringBuilder printable = new StringBuilder();
        text.codePoints().forEach(sign -> {
            int type = Character.getType(sign);
            boolean isShown = type != Character.CONTROL && type != Character.FORMAT && type != Character.SURROGATE
                    && type != Character.LINE_SEPARATOR && type != Character.PARAGRAPH_SEPARATOR;
            printable.append(isShown ? Character.toString(sign) : String.format("\\u%04x", sign));
        });
        return printable.toString();
    }

    /** The name as Kafka writes it in tags of metrics. Its own class for that is internal, and is another one in 4.4. */
    static String sanitize(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("*", "%2A").replace("+", "%20");
    }

    /** The name that was written so. */
    static String desanitize(String name) {
        return URLDecoder.decode(name, StandardCharsets.UTF_8);
    }
}
