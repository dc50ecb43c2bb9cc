package sluice.kafka;

import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A daemon thread that repeats one round until it is closed. Nothing that a round throws ends it, no Error either: a
 * thread that ended when memory was short for a second would leave the broker blind until its restart.
 */
final class LastingThread {
    /** Longer than a round takes, and than Kafka's clients take to close. */
    static final long QUIET_MS = 120_000;

    private static final Logger LOG = LoggerFactory.getLogger(LastingThread.class);
    private static final long RETRY_MS = 500;

    /** A round; what it throws is logged once, and after a pause comes the next one. */
    interface Round {
        void run() throws Exception;
    }

    /** How often a round has ended by a Throwable. */
    volatile long errors;

    /** Whether it was asked to end. */
    volatile boolean isClosing;

    private final Round round;
    private final Runnable last;
    private final Thread thread;
    private volatile long signNs = System.nanoTime();
    private volatile boolean isStarted;
    private String said = "";

    /** `last` is run once when it is closed. */
    LastingThread(String name, Round round, Runnable last) {
        this.round = round;
        this.last = last;
        this.thread = new Thread(this::repeat, name);
        this.thread.setDaemon(true);
    }

    void start() {
        isStarted = true;
        noteSign();
        thread.start();
    }

    /** Asks the thread to end; doesn't wait for it. */
    void close() {
        isClosing = true;
        thread.interrupt();
    }

    /** Waits until the thread has ended, or until System.nanoTime() is `untilNs`. */
    void join(long untilNs) {
        try {
            thread.join(Math.max(1, TimeUnit.NANOSECONDS.toMillis(untilNs - System.nanoTime())));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    /** A long round says by this that it goes on. */
    void noteSign() {
        signNs = System.nanoTime();
    }

    /** Whether the thread should work and doesn't: it has ended, or hasn't got through a round for QUIET_MS. */
    boolean isDown() {
        boolean isQuiet = System.nanoTime() - signNs > TimeUnit.MILLISECONDS.toNanos(QUIET_MS);
        return isStarted && !isClosing && (isQuiet || !thread.isAlive());
    }

    private void repeat() {
        while (!isClosing) {
            try {
                round.run();
                noteSign();
            } catch (Throwable error) {
                survive(error);
            }
        }
        Thread.interrupted(); // of close(): the last round may have ended before it saw it, and clients would not wait
        last.run();
    }

    private void survive(Throwable error) {
        try {
            boolean isInterrupted = Thread.interrupted(); // else the next round would end at once
            errors++;
            if (isClosing) {
                return;
            }
            if (!isInterrupted && !error.toString().equals(said)) {
                said = error.toString();
                LOG.error("{} failed; it tries on", thread.getName(), error);
            }
            Thread.sleep(RETRY_MS);
        } catch (Throwable again) { // there may be no memory even to say so
            Thread.yield();
        }
    }
}
