package sluice.kafka;

/**
 * Whether Kafka is at the response to a fetch of a share group (KIP-932).
 *
 * <p>Kafka acquires the records of such a fetch before it meters it, and answers without them if the client has to wait. They
 * stay locked, each time counts as a delivery, and after `group.share.delivery.count.limit` of them Kafka archives records that
 * nobody has seen. A quota's callback is told neither the request nor its API, so the stack is asked.
 */
final class ShareFetches {
    private static final String CLASS = "kafka.server.KafkaApis";
    private static final String METHOD = "processShareFetchResponse"; // tried with Kafka 4.3.1 and 4.4
    private static final int DEPTH = 16; // the first method of the class is the seventh or so
    private static final StackWalker STACK = StackWalker.getInstance();

    private ShareFetches() {}

    /** Takes some microseconds. */
    static boolean isAnswered() {
        return STACK.walk(frames -> frames.limit(DEPTH)
                .filter(frame -> frame.getClassName().equals(CLASS))
                .findFirst()
                .filter(frame -> frame.getMethodName().equals(METHOD))
                .isPresent());
    }
}
