package sluice.kafka;

/** What the plugin tells of itself, as `sluice:type=gateway,node=<id>`. Counts are since the broker's start. */
public interface GatewayMXBean {
    /** The name of this very gateway, by which its decisions are known. */
    String getInstance();

    /** The version of the limits that are in force; -1 while those are the quotas set with kafka-configs. */
    long getLimitsVersion();

    /** Whether the limits topic has been read. */
    boolean isLimitsRead();

    /** Whether what is charged is read from the meters to the byte; else it is estimated from their rates. */
    boolean isExact();

    /** Whether Kafka hands over its metrics; not while `metric.reporters` lacks Sluice's. */
    boolean isMetricsSeen();

    /** How many gateways are alive, this one included. */
    int getGateways();

    /** How many counters are kept. */
    int getCounters();

    /** How many metrics belong to counters that there was no room for. */
    long getCountersNotFollowed();

    /** How many requests of new client-ids shared one counter, because there were too many of them at a time. */
    long getRequestsOfMoreNames();

    /** Age of the oldest event that may be without a decision, in milliseconds. */
    long getStalenessMs();

    /** The log directory that is low, of this or another broker, so that producers are throttled; null if none is. */
    String getLowDisk();

    /**
     * The principals that bear Sluice's client-ids and weren't exempt in the last minute, separated by semicolons; null if
     * there are none.
     */
    String getNotExempt();

    /** How many entities' sums were read, one for each and micro-batch. */
    long getSums();

    /** How many events have reached the requests topic. */
    long getPublished();

    /** How often an event did not; its sum is sent again. */
    long getPublishFailures();

    /** How many sums were given up because they could not be published for a minute. */
    long getSumsGivenUp();

    /** How many records of sums were left out because a driver of the job wrote them that had been replaced. */
    long getFencedRecords();

    /** How many records of the limits and sums topics were passed over. */
    long getUnreadableRecords();

    /** How many of the plugin's threads should work and don't; 0 is well. */
    int getThreadsDown();

    /** How often one of its threads has failed and went on. */
    long getThreadErrors();
}
