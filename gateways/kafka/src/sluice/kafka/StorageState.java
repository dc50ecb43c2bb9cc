package sluice.kafka;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.HashSet;
import java.util.Set;

/**
 * The tenants that have used up their storage budgets, as the job has published them: their producers are held as the disk
 * guard holds all; and a disk that is low by what brokers say. The same rules as `state/shares/storage_budget.py`.
 */
final class StorageState {
    /** Names in events the waits that no quota asked for, but a budget; and the budget among the limits. */
    static final String NAME = "stored_bytes";

    static final long FRESH_MS = 60_000;
    static final StorageState NONE = new StorageState(0, Set.of(), null);

    final Set<String> held;

    /** The disk for which all producers are held; null if they aren't. */
    final String lowDisk;

    private final long atMs;

    private StorageState(long atMs, Set<String> held, String lowDisk) {
        this.atMs = atMs;
        this.held = held;
        this.lowDisk = lowDisk;
    }

    static StorageState read(byte[] value) throws IOException {
        JsonNode record = Json.object(value);
        Set<String> held = new HashSet<>();
        for (JsonNode tenant : record.path("tenants")) {
            String name = Json.text(tenant, "tenant");
            Json.check(!name.isEmpty(), "the tenant is empty"); // so is that of clients in no tenant
            if (Json.flag(tenant, "is_held")) {
                held.add(name);
            }
        }
        return new StorageState(Json.whole(record, "at_ms"), held, Json.textOrNull(record, "low_disk"));
    }

    /** Until when it holds if it was heard now. */
    long holdsUntilMs(long heardMs) {
        return ElasticState.holdsUntilMs(atMs, heardMs, FRESH_MS);
    }
}
