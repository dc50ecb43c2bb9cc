package sluice.kafka;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The brokers whose disks are low: this one's own, and others' as their decided heartbeats say. Meanwhile all producers are
 * held. The same rules as `state/shares/disk_guard.py`. Reads no clock.
 */
final class DiskGuard {
    /** Names in events the waits that no quota asked for, but the guard. */
    static final String NAME = "disk_guard";

    /** The longest mute of a producer that is held, and so what it may still wait when there is room again. */
    static final long HELD_MS = 10_000;

    /** How long a broker that said that its disk is low is believed. */
    static final long FRESH_MS = 10_000;

    private static final int MAX_BROKERS = 1_000;

    private final Map<String, Heard> heard = new LinkedHashMap<>(); // who was heard of longest ago comes first
    private final Settings settings;

    DiskGuard(Settings settings) {
        this.settings = settings;
    }

    /** Takes over a decided heartbeat; `lowDisk` is null if the disks of its broker aren't low. */
    synchronized void take(String instance, String lowDisk, long nowMs) {
        heard.remove(instance);
        if (lowDisk != null) {
            heard.put(instance, new Heard(lowDisk, nowMs));
            if (heard.size() > MAX_BROKERS) {
                heard.remove(heard.keySet().iterator().next());
            }
        }
    }

    /** The disk for which producers are held now; null if they aren't. `own` is this broker's load, null if unknown. */
    synchronized String low(Load own, long nowMs) {
        if (own != null) {
            for (Load.LogDir dir : own.logDirs) {
                double leastBytes = Math.max(
                        settings.diskMinFreeBytes, settings.diskMinFreePercent / 100.0 * dir.totalBytes);
                if (dir.freeBytes < leastBytes) {
                    return "broker " + settings.node + ": " + dir.path + " has " + dir.freeBytes + " of " + dir.totalBytes
                            + " bytes free";
                }
            }
        }
        for (Iterator<Heard> longestAgo = heard.values().iterator(); longestAgo.hasNext(); ) {
            Heard known = longestAgo.next();
            if (Math.abs(nowMs - known.heardMs) <= FRESH_MS) {
                return known.lowDisk;
            }
            longestAgo.remove();
        }
        return null;
    }

    private static final class Heard {
        private final String lowDisk;
        private final long heardMs;

        Heard(String lowDisk, long heardMs) {
            this.lowDisk = lowDisk;
            this.heardMs = heardMs;
        }
    }
}
