package sluice.kafka;

/** How Kafka samples a quota: `samples` windows of `windowMs` milliseconds each. */
final class Window {
    final int samples;
    final long windowMs;

    Window(int samples, long windowMs) {
        this.samples = samples;
        this.windowMs = windowMs;
    }

    /** The shortest time that a meter covers: all windows but one. */
    long spanMs() {
        return Math.max(1, samples - 1) * windowMs;
    }
}
