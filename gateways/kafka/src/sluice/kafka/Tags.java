package sluice.kafka;

import java.util.Objects;

/**
 * Whom a counter is kept for: Kafka's metric tags, not encoded. A part that the counter doesn't have is "". Tags of a
 * meter also name the tenant of its clients; a tenant's own counter has neither user nor client-id.
 */
public final class Tags {
    public final String user;
    public final String clientId;
    final String tenant;

    /** Null but for a topic-partition, which has neither user nor client-id. */
    final String topic;

    final int partition;

    Tags(String user, String clientId) {
        this(user, clientId, "");
    }

    Tags(String user, String clientId, String tenant) {
        this(user, clientId, tenant, null, -1);
    }

    private Tags(String user, String clientId, String tenant, String topic, int partition) {
        this.user = user;
        this.clientId = clientId;
        this.tenant = tenant;
        this.topic = topic;
        this.partition = partition;
    }

    static Tags ofPartition(String topic, int partition) {
        return new Tags("", "", "", topic, partition);
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
                && tenant.equals(((Tags) other).tenant)
                && Objects.equals(topic, ((Tags) other).topic)
                && partition == ((Tags) other).partition;
    }

    @Override
    public int hashCode() {
        int ofClient = 31 * (31 * user.hashCode() + clientId.hashCode()) + tenant.hashCode();
        return topic == null ? ofClient : topic.hashCode() + partition;
    }
}
