package sluice.kafka;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * One counter on one gateway: what the others use of its limit, and this gateway's share. Reads no clock.
 *
 * <p>The share follows `state/shares/counter_share.py` step by step: max-min fairness among the gateways, less what they
 * used too much together. What differs is who charges: here it is a broker's own meter, so {@link #share} is told
 * afterwards. Not for several threads. Times are epoch milliseconds.
 */
final class CounterShare {
    private static final double CORRECTION_S = 30.0;
    private static final double MAX_DEBT_S = 10.0;
    private static final double MAX_CREDIT_S = 5.0;
    private static final double GROWTH = 4.0;
    private static final double RAMP_S = 5.0;
    private static final double SILENT_S = 2.5;
    private static final long TARGET_MS = 100;
    private static final long REPEATED_BATCHES = 100; // a lower number is of a job that goes on from a backup, whatever its clock
    private static final double SIZE_WEIGHT = 0.02;

    /** Stands for all gateways that give no `instance`: they don't charge in line. */
    private static final String ANONYMOUS = "";

    private final Map<String, GatewayUse> others = new LinkedHashMap<>();
    private double allLeft = Double.POSITIVE_INFINITY; // what all gateways together may still use, by what is decided
    private long allLeftMs;
    private long decidedMs; // newest time of a decided request
    private long ownDecidedMs = -1; // the same of the own requests
    private final GatewayUse own = new GatewayUse();
    private double fetchSize;
    private long activeSinceMs;
    private long lastChargeMs = -1;
    private long heldUntilMs;
    private double share;
    private long shareMs;
    private double targetShare;
    private double targetLimit;
    private int targetCount;
    private long targetUntilMs;
    private String jobId;
    private long batch = -1; // of the newest sum
    private long batchMs;

    /** This gateway's share of the limit now, in units of the quota per second; its clients were charged now if `isCharged`. */
    double share(double limit, boolean isCharged, AliveGateways gateways, Window window, long nowMs) {
        boolean idle = isIdle(window, nowMs);
        double now = shareNow(limit, gateways, window, nowMs, idle);
        if (isCharged) {
            activeSinceMs = idle ? nowMs : activeSinceMs;
            lastChargeMs = nowMs;
        }
        return now;
    }

    /** Notes that a client was made to wait in line until a time. */
    void held(long untilMs) {
        heldUntilMs = Math.max(heldUntilMs, untilMs);
    }

    /**
     * Whether this is the first sum of a job's micro-batch, which may be repeated; it is known from now on. A lower number
     * with a later time is of a job that goes on from a backup.
     */
    boolean isNew(String job, long number, long decidedAtMs) {
        boolean isKnown = number <= batch && number > batch - REPEATED_BATCHES && Objects.equals(job, jobId);
        if (isKnown && decidedAtMs <= batchMs) {
            return false;
        }
        jobId = job;
        batch = number;
        batchMs = decidedAtMs;
        return true;
    }

    /** A counter without charges that knows the same sums. */
    CounterShare reset() {
        CounterShare fresh = new CounterShare();
        fresh.jobId = jobId;
        fresh.batch = batch;
        fresh.batchMs = batchMs;
        return fresh;
    }

    /** Takes over the sum of a micro-batch. `nowMs` is when it arrived; no time in it is later. */
    void takeSum(Sums.CounterSum sum, AliveGateways gateways, Window window, long nowMs) {
        targetUntilMs = 0;
        long untilMs = Math.min(sum.untilMs, nowMs);
        if (!Double.isNaN(sum.limit)) {
            if (sum.fetches > 0) { // a forged one would take the share for minutes
                double most = sum.limit * meterS(window);
                noteSizes(Math.min(sum.fetchBytes / sum.fetches, most), sum.fetches);
            }
            double value = 0.0;
            for (Sums.GatewaySum charged : sum.byGateway) {
                value += charged.value;
            }
            settle(sum.limit, value, Math.min(sum.fromMs, untilMs), untilMs, window);
        }
        for (Sums.GatewaySum charged : sum.byGateway) {
            long chargedMs = Math.min(charged.untilMs, nowMs);
            if (gateways.isOwn(charged.gateway.instance)) {
                ownDecidedMs = Math.max(ownDecidedMs, chargedMs);
                own.record(charged.faded, chargedMs, window.spanMs() / 1000.0, charged.appliedMs);
                continue;
            }
            GatewayUse other = other(charged.gateway, gateways);
            if (other != null) {
                other.record(charged.faded, chargedMs, window.spanMs() / 1000.0, charged.appliedMs);
                if (charged.appliedMs > 0) {
                    other.hungryUntilMs =
                            Math.max(other.hungryUntilMs, nowMs + Math.max(charged.appliedMs, window.spanMs()));
                }
            }
        }
    }

    /** What is known of another gateway; null for one that isn't alive. */
    private GatewayUse other(Sums.SummedGateway gateway, AliveGateways gateways) {
        boolean isKnown = gateway.instance != null && gateway.chargesInLine;
        String instance = isKnown ? gateway.instance : ANONYMOUS;
        if (isKnown && !gateways.isAlive(instance)) {
            return null;
        }
        if (!others.containsKey(instance) && others.size() > gateways.count()) {
            forgetGone(gateways);
        }
        return others.computeIfAbsent(instance, name -> new GatewayUse());
    }

    private static double meterS(Window window) {
        return window.samples * window.windowMs / 1000.0;
    }

    private void noteSizes(double size, long count) {
        double kept = fetchSize != 0.0 ? Math.pow(1.0 - SIZE_WEIGHT, count) : 0.0;
        fetchSize = size + (fetchSize - size) * kept;
    }

    private boolean isIdle(Window window, long nowMs) {
        return lastChargeMs < 0 || nowMs > Math.max(lastChargeMs, heldUntilMs) + window.spanMs();
    }

    private double shareNow(double limit, AliveGateways gateways, Window window, long nowMs, boolean idle) {
        int count = gateways.count();
        double target;
        if (count == 1 && others.isEmpty()) {
            target = limit;
        } else if (nowMs < targetUntilMs && limit == targetLimit && count == targetCount) {
            target = targetShare;
        } else {
            target = targetShare = target(limit, gateways, window, nowMs);
            targetLimit = limit;
            targetCount = count;
            targetUntilMs = nowMs + TARGET_MS;
        }
        double first = limit / count;
        if (idle) {
            share = Math.min(target, first);
        } else if (ownDecidedMs < activeSinceMs) {
            share = Math.min(target, Math.max(first, share));
        } else {
            long knownMs = gateways.knownUntilMs(nowMs);
            share = Math.min(target, share + limit * Math.max(0, knownMs - shareMs) / 1000.0 / RAMP_S);
        }
        shareMs = nowMs;
        return share;
    }

    private double target(double limit, AliveGateways gateways, Window window, long nowMs) {
        long knownMs = gateways.knownUntilMs(nowMs);
        double spanS = window.spanMs() / 1000.0;
        double floor = limit / (2 * gateways.count());
        double free = limit;
        double used = 0.0;
        List<Double> wanted = new ArrayList<>();
        forgetGone(gateways);
        for (GatewayUse other : others.values()) {
            double rate = other.rate(decidedMs, spanS);
            used += rate;
            if (other.hungryUntilMs > knownMs) {
                wanted.add(Math.max(floor, GROWTH * rate));
            } else {
                free -= rate;
            }
        }
        if (gateways.count() > 1) {
            double left = left(limit, gateways.decidedMs());
            free += (knownMs == nowMs ? left : Math.min(0.0, left)) / CORRECTION_S;
        }
        double part = equalPart(free, wanted);
        if (knownMs < nowMs) { // so that all parts together stay the limit
            double ownRate = own.rate(decidedMs, spanS);
            part = Math.min(part, ownRate + (limit - used - ownRate) / gateways.count());
        }
        return Math.max(floor, part);
    }

    /** Forgets the gateways that are no longer alive. */
    private void forgetGone(AliveGateways gateways) {
        others.keySet().removeIf(instance -> !instance.equals(ANONYMOUS) && !gateways.isAlive(instance));
    }

    private double left(double limit, long untilMs) {
        double sinceS = Math.max(0, untilMs - allLeftMs) / 1000.0;
        return Math.min(allLeft + limit * sinceS, limit * MAX_CREDIT_S);
    }

    private void settle(double limit, double value, long oldestMs, long newestMs, Window window) {
        if (decidedMs == 0) { // what the buckets of the gateways may let through at once
            allLeft = limit * (window.spanMs() / 2 / 1000.0);
            allLeftMs = oldestMs;
        }
        double usable = limit - fetchSize / meterS(window);
        double most = usable * MAX_CREDIT_S;
        long fromMs = Math.max(oldestMs, allLeftMs);
        decidedMs = Math.max(Math.max(newestMs, fromMs), decidedMs);
        double left = Math.min(most, allLeft + usable * ((fromMs - allLeftMs) / 1000.0));
        left = Math.min(most, left - value + usable * ((decidedMs - fromMs) / 1000.0));
        allLeft = Math.max(left, -limit * MAX_DEBT_S);
        allLeftMs = decidedMs;
    }

    private static double equalPart(double free, List<Double> wanted) {
        Collections.sort(wanted);
        for (int number = 0; number < wanted.size(); number++) {
            double amount = wanted.get(number);
            double part = free / (1 + wanted.size() - number);
            if (amount >= part) {
                return part;
            }
            free -= amount;
        }
        return free;
    }

    /** What the sums say of a gateway on one counter. */
    private static final class GatewayUse {
        private double charged; // fades to 1/e in the span of a meter: divided by it, it is a rate
        private long chargedMs;
        private long waitingUntilMs;
        private long hungryUntilMs;

        void record(double faded, long eventMs, double spanS, long appliedMs) {
            waitingUntilMs = Math.max(waitingUntilMs, eventMs + appliedMs);
            double ageS = (eventMs - chargedMs) / 1000.0;
            charged = charged * Math.exp(-Math.max(0.0, ageS) / spanS) + faded * Math.exp(Math.min(0.0, ageS) / spanS);
            chargedMs = Math.max(chargedMs, eventMs);
        }

        /** The rate until a time. It fades to 1/e in the span of a meter, and in SILENT_S while the gateway is silent. */
        double rate(long decidedMs, double spanS) {
            double ageS = Math.max(0, decidedMs - chargedMs) / 1000.0;
            double silentS = Math.max(0, decidedMs - waitingUntilMs) / 1000.0;
            return charged / spanS * Math.exp(-ageS / spanS - silentS / SILENT_S);
        }
    }
}
