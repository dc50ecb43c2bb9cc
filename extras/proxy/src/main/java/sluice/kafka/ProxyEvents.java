package sluice.kafka;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

/** The events that a proxy alone publishes. */
final class ProxyEvents {
    private static final String REFUSED_API = "Refused";

    private ProxyEvents() {}

    /** A sum of requests that the limit of a counter refused, the last one now, which charge nothing. */
    static byte[] refused(Events events, Refusals.Refusal each) {
        ObjectNode event = events.event(events.newId(), REFUSED_API, each.atMs()).put("requests", each.requests());
        event.put("user", each.client().user).put("client_id", each.client().clientId);
        event.putArray("throttled_by").add(Events.named(each.counter()).put("ms", each.waitMs()));
        return Events.bytes(event);
    }

    /** A request for mutations that waits for its decision. */
    static byte[] mutations(Events events, String id, Mutations asked, Tags client, long nowMs) {
        ObjectNode event = events.event(id, asked.api, nowMs).put("api_version", asked.apiVersion);
        event.put("user", client.user).put("client_id", client.clientId);
        ArrayNode mutations = event.putArray("mutations");
        asked.partitions.forEach((topic, count) -> mutations.addObject().put("topic", topic).put("partitions", count));
        return Events.bytes(event);
    }
}
