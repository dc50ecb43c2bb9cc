package sluice.kafka;

/**
 * Whom a counter is kept for: Kafka's metric tags, not encoded. A part that the counter doesn't have is "". Tags of a
 * meter also name the tenant of its clients; a tenant's own counter has neither user nor client-id.
 */
public final class Tags {
    public final String user;
    public final String clientId;
    final String tenant;

    Tags(String user, String clientId) {
        this(user, clientId, "");
    }

    Tags(String user, String clientId, String tenant) {
        this.user = user;
        this.clientId = clientId;
        this.tenant = tenant;
    }

    /** The same of clients in a tenant; "" is none. */
    Tags in(String ofTenant) {
        return ofTenant.isEmpty() ? this : new Tags(user, clientId, ofTenant);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Tags
                && user.equals(((Tags) other).user)
                && clientId.equals(((Tags) other).clientId)
                && tenant.equals(((Tags) other).tenant);
    }

    @Override
    public int hashCode() {
        return 31 * (31 * user.hashCode() + clientId.hashCode()) + tenant.hashCode();
    }

    @Override
    public String toString() {
        return "(" + user + ", " + clientId + (tenant.isEmpty() ? "" : ", tenant " + tenant) + ")";
    }
}
