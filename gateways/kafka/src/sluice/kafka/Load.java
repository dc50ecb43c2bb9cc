package sluice.kafka;

import java.util.List;

/** The load of a broker or proxy since the look before; NaN where it isn't known. */
final class Load {
    final double bytesInPerS;
    final double bytesOutPerS;
    final double handlerIdle;
    final double networkIdle;
    final double queueUsed;
    final double queueWaitMs;
    final List<LogDir> logDirs;

    Load(
            double bytesInPerS,
            double bytesOutPerS,
            double handlerIdle,
            double networkIdle,
            double queueUsed,
            double queueWaitMs,
            List<LogDir> logDirs) {
        this.bytesInPerS = bytesInPerS;
        this.bytesOutPerS = bytesOutPerS;
        this.handlerIdle = handlerIdle;
        this.networkIdle = networkIdle;
        this.queueUsed = queueUsed;
        this.queueWaitMs = queueWaitMs;
        this.logDirs = logDirs;
    }

    /** The first log directory that is low, in words; null if none is. The same rule as `state/shares/load.py`. */
    String lowDisk(Settings settings) {
        for (LogDir dir : logDirs) {
            if (dir.freeBytes < Math.max(settings.diskMinFreeBytes, settings.diskMinFreePercent / 100.0 * dir.totalBytes)) {
                return "broker " + settings.node + ": " + dir.path + " has " + dir.freeBytes + " of " + dir.totalBytes
                        + " bytes free";
            }
        }
        return null;
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
