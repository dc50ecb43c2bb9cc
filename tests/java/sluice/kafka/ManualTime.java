package sluice.kafka;

import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;

/** A clock that is set by hand. */
final class ManualTime implements Time {
    private long ms = 1_700_000_000_000L;

    @Override
    public long milliseconds() {
        return ms;
    }

    @Override
    public long nanoseconds() {
        return ms * 1_000_000;
    }

    @Override
    public void sleep(long forMs) {
        ms += forMs;
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException();
    }
}
