package sluice.proxy;

/** Holds a request for which there is always another wait, while each look comes late. Ends with 1 at a fault. */
public final class LateLooks {
    private static final long MS = 1_000_000;

    public static void main(String[] arguments) {
        check(heldMs(60_000, 300, Hold.MAX_MS) <= 10_300, "long waits");
        check(heldMs(1, 1, Hold.MAX_MS) <= 10_001, "waits of 1 ms, each of which takes 2");
        check(heldMs(400, 0, Hold.MAX_MS) == 10_000, "waits in time");
        check(heldMs(400, 0, Hold.MAX_OWED_MS) == 15_000, "waits for others");
        check(new Hold(0).nextMs(0, Hold.MAX_MS, 0) == 0, "no wait");
    }

    /** For how long a request is held whose every look comes so late, and then asks for so long a wait. */
    private static long heldMs(long waitMs, long lateMs, long mostMs) {
        long startMs = Long.MAX_VALUE / MS - 5_000; // of a clock that has no zero, and overflows meanwhile
        Hold hold = new Hold(startMs * MS);
        long nowMs = startMs;
        for (long nextMs = hold.nextMs(waitMs, mostMs, nowMs * MS); nextMs > 0; nextMs = hold.nextMs(waitMs, mostMs, nowMs * MS)) {
            nowMs += nextMs + lateMs;
        }
        return nowMs - startMs;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            System.err.println(what);
            System.exit(1);
        }
    }
}
