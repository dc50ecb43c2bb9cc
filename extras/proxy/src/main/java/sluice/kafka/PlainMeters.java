package sluice.kafka;

import org.apache.kafka.common.utils.Time;

/** The meters of a proxy, whose common buckets are those that requests wait for in turn. */
final class PlainMeters extends Meters<PlainMeter> {
    PlainMeters(Settings settings, Time time) {
        super(settings.maxMuteMs, settings.window, (key, longestMute) ->
                new PlainMeter(key, settings.window, longestMute, time::milliseconds));
    }

    @Override
    QueuedBucket newBucket(CounterKey counter, Window window, LongestMute longestMute) {
        return new QueuedBucket(counter, window, longestMute);
    }
}
