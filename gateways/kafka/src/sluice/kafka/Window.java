package sluice.kafka;

/** How Kafka samples a quota: `samples` windows of `windowMs` milliseconds each. */
public final class Window {
    public final int samples;
    public final long windowMs;

    Window(int samples, long windowMs) {
        this.samples = samples;
        this.windowMs = windowMs;
    }

    /** The shortest time that a meter covers: all windows but one. */
    public long spanMs() {
        return Math.max(1, samples - 1) * windowMs;
    }
}
