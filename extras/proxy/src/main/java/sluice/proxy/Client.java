package sluice.proxy;

import sluice.kafka.CounterKey;
import sluice.kafka.Kind;
import sluice.kafka.ProxyGateway;

/** Who sent a request: the user as a broker names it, ANONYMOUS without a login, and the client-id, "" for none. */
record Client(String user, String clientId) {
    /** Its counter, with its tenant. */
    CounterKey counter(Kind kind, ProxyGateway gateway) {
        return gateway.meterOf(kind, user, clientId);
    }
}
