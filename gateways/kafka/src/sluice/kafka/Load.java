package sluice.kafka;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

/** The load of a broker or proxy since the look before. */
final class Load {
    /** By the name of their field in a heartbeat; NaN where they aren't known. */
    final Map<String, Double> figures;

    final List<LogDir> logDirs;

    Load(Map<String, Double> figures, List<LogDir> logDirs) {
        this.figures = new TreeMap<>(figures);
        this.logDirs = logDirs;
    }

    /** The first log directory that is low, in words; null if none is. The same rule as `state/shares/load.py`. */
    String lowDisk(Settings settings) {
        for (LogDir dir : logDirs) {
            if (dir.freeBytes < Math.max(settings.diskMinFreeBytes, settings.diskMinFreePercent / 100.0 * dir.totalBytes)) {
                return "broker " + settings.node + ": " + dir.path + " has " + size(dir.freeBytes) + " of "
                        + size(dir.totalBytes) + " free";
            }
        }
        return null;
    }

    /** Bytes as people write them. */
    private static String size(long bytes) {
        int thousands = Math.min(4, (Long.toString(bytes).length() - 1) / 3);
        double amount = bytes / Math.pow(1_000, thousands);
        return thousands == 0 ? bytes + " B" : String.format(Locale.ROOT, "%.1f %cB", amount, "kMGT".charAt(thousands - 1));
    }

    /** A log directory, and the bytes of its volume. */
    static final class LogDir {
        final String path;
        final long freeBytes;
        final long totalBytes;

        LogDir(String path, long freeBytes, long totalBytes) {
            this.path = path;
            this.freeBytes = freeBytes;
            this.totalBytes = totalBytes;
        }
    }
}
