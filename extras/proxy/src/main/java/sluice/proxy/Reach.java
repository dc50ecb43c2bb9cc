package sluice.proxy;

import io.kroxylicious.proxy.service.HostPort;
import io.netty.util.NetUtil;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Which brokers answer new connections, and which have failed since they did. While all of `bootstrap.servers` have, no new
 * client gets in: a line says so, and why, once a minute, and another one that it is over.
 *
 * <p>Safe for any thread.
 */
final class Reach {
    /** Begins the lines for whoever runs the proxy. */
    static final String TO_TERMINAL = "CLIENTS ";

    private static final long AVOIDED_NS = TimeUnit.SECONDS.toNanos(10);
    private static final long AGAIN_NS = TimeUnit.MINUTES.toNanos(1);

    private final Consumer<String> say;
    private final Map<String, Failure> failures = new ConcurrentHashMap<>();
    private volatile List<String> servers = List.of();
    private boolean isSaid;
    private long saidNs;

    Reach(Consumer<String> say) {
        this.say = say;
    }

    void setServers(List<HostPort> present) {
        if (servers.isEmpty()) {
            servers = present.stream().map(Reach::name).toList();
        }
    }

    boolean hasJustFailed(HostPort server, long nowNs) {
        Failure failure = failures.get(name(server));
        return failure != null && nowNs - failure.ns < AVOIDED_NS;
    }

    /** Notes that a server, of any name, doesn't answer a connection. */
    void noteFailure(String server, String cause, long nowNs) {
        failures.put(server, new Failure(cause, nowNs));
        sayIfNobodyGetsIn(nowNs);
    }

    /** Notes the first answer on a connection. */
    void noteAnswer(String server, long nowNs) {
        if (failures.remove(server) != null) {
            sayIfNobodyGetsIn(nowNs);
        }
    }

    private synchronized void sayIfNobodyGetsIn(long nowNs) {
        List<String> known = servers;
        Map<String, Failure> present = new HashMap<>(failures);
        present.keySet().retainAll(known);
        boolean isShut = !known.isEmpty() && present.size() == known.size()
                && present.values().stream().allMatch(each -> nowNs - each.ns < AGAIN_NS);
        if (isShut && (!isSaid || nowNs - saidNs >= AGAIN_NS)) {
            isSaid = true;
            saidNs = nowNs;
            known.forEach(server -> say.accept(TO_TERMINAL + "no new client gets in: " + server + " " + present.get(server).cause));
        } else if (isSaid && present.size() < known.size()) {
            isSaid = false;
            say.accept(TO_TERMINAL + "new clients get in again");
        }
    }

    static String name(HostPort server) {
        return name(server.host(), server.port());
    }

    /** An IPv6 address may be written in several ways. */
    static String name(String host, int port) {
        return NetUtil.isValidIpV6Address(host)
                ? "[" + NetUtil.bytesToIpAddress(NetUtil.createByteArrayFromIpAddressString(host)) + "]:" + port
                : host + ":" + port;
    }

    private record Failure(String cause, long ns) {}
}
