package sluice.kafka;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/**
 * Which records count when a driver of the job was replaced and publishes on; the rule of state/decisions/leader_epochs.py.
 *
 * <p>An epoch more than MAX_STEP above the highest known of its job is forged: its record is unreadable.
 *
 * <p>After a record of an epoch no record of an older epoch of the same job counts in that partition. A marker, which
 * has an epoch and no value, is no record. Used by one thread; others may read `fenced`.
 */
final class Fence {
    private static final Pattern EPOCH = Pattern.compile("([!-9;-~]{1,64}):([0-9]{1,18})");
    private static final int MAX_JOBS = 16;
    private static final long MAX_STEP = 1_000;

    private final Map<Integer, Map<String, Long>> highest = new HashMap<>();

    /** How many records were left out because a driver of the job wrote them that had been replaced. */
    volatile long fenced;

    /** A topic is read from its beginning again. */
    void forget() {
        highest.clear();
    }

    /** Whether this record counts. Throws IOException if no driver can have its epoch. */
    boolean passes(ConsumerRecord<byte[], byte[]> record) throws IOException {
        Header header = record.headers().lastHeader("epoch");
        if (header == null || header.value() == null) {
            return true;
        }
        Matcher epoch = EPOCH.matcher(new String(header.value(), StandardCharsets.ISO_8859_1));
        if (!epoch.matches()) {
            return true;
        }
        boolean isMarker = record.value() == null;
        if (isOlder(record.partition(), epoch.group(1), Long.parseLong(epoch.group(2)))) {
            fenced += isMarker ? 0 : 1;
            return false;
        }
        return !isMarker;
    }

    /** Whether the job's epoch is older than one before it in the partition; else it is the highest now. */
    private boolean isOlder(int partition, String job, long number) throws IOException {
        Map<String, Long> jobs = highest.computeIfAbsent(partition, any -> new LinkedHashMap<>());
        Long known = jobs.get(job);
        long most = known != null ? known : highestOf(job);
        Json.check(most == 0 || number - MAX_STEP <= most, "epoch " + number + " is far above " + most);
        if (known != null && known >= number) {
            return known > number;
        }
        jobs.put(job, number);
        if (jobs.size() > MAX_JOBS) { // whoever forges jobs fills no memory
            jobs.remove(jobs.keySet().iterator().next());
        }
        return false;
    }

    /** The highest epoch of a job in any partition; 0 if none is known. */
    private long highestOf(String job) {
        return highest.values().stream().mapToLong(jobs -> jobs.getOrDefault(job, 0L)).max().orElse(0);
    }
}
