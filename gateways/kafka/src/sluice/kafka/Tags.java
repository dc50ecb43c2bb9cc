package sluice.kafka;

/** Whom a counter is kept for: Kafka's metric tags, not encoded. A part that the counter doesn't have is "". */
public final class Tags {
    public final String user;
    public final String clientId;

    Tags(String user, String clientId) {
        this.user = user;
        this.clientId = clientId;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Tags
                && user.equals(((Tags) other).user)
                && clientId.equals(((Tags) other).clientId);
    }

    @Override
    public int hashCode() {
        return 31 * user.hashCode() + clientId.hashCode();
    }

    @Override
    public String toString() {
        return "(" + user + ", " + clientId + ")";
    }
}
