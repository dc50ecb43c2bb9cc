package sluice.kafka;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/** Reads the records of Sluice's topics as strictly as the job does. What can't be read throws an IOException. */
final class Json {
    static final long MAX_EXACT = 1L << 53; // what JSON can carry
    static final double MAX_VALUE = 1e30;
    static final long MAX_TIMESTAMP_MS = 253_402_300_799_999L; // the last one of the year 9999

    private static final ObjectMapper MAPPER =
            new ObjectMapper().enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private Json() {}

    /** The one JSON object of a record, in UTF-8. */
    static JsonNode object(byte[] record) throws IOException {
        JsonNode read = MAPPER.readTree(utf8(record));
        check(read != null && read.isObject(), "the record is no JSON object");
        return read;
    }

    /** The one JSON string of a key. */
    static String string(String key) throws IOException {
        JsonNode read = MAPPER.readTree(key);
        check(read.isTextual(), "the key is no JSON string");
        return whole(read.textValue(), "the key");
    }

    /** A record as text. */
    static String utf8(byte[] record) throws IOException {
        check(record != null, "the record is empty");
        return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(record)).toString();
    }

    /** A field that must be there. */
    static String text(JsonNode fields, String field) throws IOException {
        String text = textOrNull(fields, field);
        check(text != null, field + " is missing");
        return text;
    }

    /** A field that may be missing; it is empty then. */
    static String textOrEmpty(JsonNode fields, String field) throws IOException {
        return fields.has(field) ? text(fields, field) : "";
    }

    /** A field that may be null or missing. */
    static String textOrNull(JsonNode fields, String field) throws IOException {
        JsonNode value = fields.path(field);
        check(value.isTextual() || value.isNull() || value.isMissingNode(), field + " is no text");
        return whole(value.textValue(), field);
    }

    /** A text that is no half of a surrogate pair anywhere; null stays null. */
    static String whole(String text, String name) throws IOException {
        check(text == null || StandardCharsets.UTF_8.newEncoder().canEncode(text), name + " has half of a surrogate pair");
        return text;
    }

    /** A field that must be there, and a whole number. */
    static long whole(JsonNode fields, String field) throws IOException {
        JsonNode value = fields.path(field);
        check(value.isIntegralNumber() && value.canConvertToLong(), field + " is no whole number");
        return value.longValue();
    }

    /** The same, from `least` to `most`. */
    static long whole(JsonNode fields, String field, long least, long most) throws IOException {
        long value = whole(fields, field);
        check(value >= least && value <= most, field + " is " + value);
        return value;
    }

    /** A list; empty if it is missing. */
    static JsonNode list(JsonNode fields, String field) throws IOException {
        JsonNode value = fields.path(field);
        check(value.isArray() || value.isMissingNode(), field + " is no list");
        return value;
    }

    /** A field that is true or false; false if it is missing. */
    static boolean flag(JsonNode fields, String field) throws IOException {
        JsonNode value = fields.path(field);
        check(value.isBoolean() || value.isMissingNode(), field + " is neither true nor false");
        return value.booleanValue();
    }

    static void check(boolean isGood, String problem) throws IOException {
        if (!isGood) {
            throw new IOException(problem);
        }
    }
}
