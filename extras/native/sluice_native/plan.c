/* Plans plain request events: from the JSON of gateways to the rows of page batches, byte for byte as Python's
 * `sluice.streaming.enforce.planning` does, which is the rule and has all that isn't plain.
 *
 * C11 without Python's headers: any Python of the platform loads it and hands it buffers. It trusts its caller, and no
 * byte of an event. An event is copied to a place of fixed size with zeros behind it, at which each loop ends; no length
 * is taken from an event; all that grows is bounded by the caller, which takes the rows when there are enough.
 */
#include "text.h"

#ifndef SOURCES
#define SOURCES ""
#endif

enum {
    MAX_EVENT = 32767,    /* shorter events have no name or list that is too long (`parsing.parse_request`) */
    MAX_NAME = 256,       /* longer names are counted under a hash (`entity.bounded_name`) */
    MAX_INSTANCE = 250,   /* a longer instance counts as none (`sums.gateway_text`) */
    MAX_TOUCHED = 256, MAX_MUTATED = 1024, MAX_WAITS = 64,
    MAX_COUNTERS = 12, MAX_MODES = 4, MAX_CHARGES = 12,
    MAX_APPLIED_MS = 3600000,
};
#define MAX_TIMESTAMP_MS 253402300799999LL
#define MAX_EXACT 9007199254740992LL
#define MAX_INT32 2147483647LL
#define MAX_INT16 32767LL
#define MOST_WAIT 99999999999999999LL /* any integer of 17 digits: it is shortened */
#define EXACT_TEXT 1e15               /* from here on a double as text may have an exponent */

/* What becomes of a row of `plan_events`. */
enum { UNKNOWN = 2 };
enum { MAX_KEPT = 1 << 26 }; /* bytes that all pages keep between page batches */
enum { MAX_TOLD = 1 << 18 }; /* bytes of texts and keys that Python tells for an event, about, at most */
enum { LEAST_EVENT = 64 };   /* bytes that an event counts at least (`pipeline.LEAST_EVENT_BYTES`) */

/* ---- the event */
typedef struct { const uint8_t *at; uint32_t n; int escaped; } Slice; /* `at` NULL: absent or null; `escaped`: had escapes */
typedef struct { Slice topic; int64_t number, bytes; } Entry;
typedef struct { Slice quota, user, client_id, topic, tenant; int64_t partition, ms; uint32_t entity_at, entity_n; } Wait;
enum { ABSENT = -1 };
typedef struct {
    Slice api, request_id, user, client_id, gateway, instance;
    int64_t timestamp_ms, request_time_ns, network_time_ns, api_version, purgatory_ms, requests, bytes, mutations_charged;
    int64_t validate_only, cluster_action, authenticating, withheld;
    int has_waits;
    int touched_n, mutated_n, waits_n;
    Entry touched[MAX_TOUCHED], mutated[MAX_MUTATED];
    Wait waits[MAX_WAITS];
} Event;

static uint8_t is_plain[256];     /* bytes of a JSON text that stand for themselves */
static uint8_t is_unchanged[256]; /* by URL-encoding */
static int tables_made;

static void make_tables(void) {
    if (tables_made) return;
    for (uint32_t i = 0; i < 256; i++) {
        is_plain[i] = i >= 32 && i < 128 && i != '"' && i != '\\';
        is_unchanged[i] = (i >= '0' && i <= '9') || (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z') || i == '.' || i == '_' || i == '-';
    }
    make_crc_table();
    tables_made = 1;
}

static inline uint8_t *blank(uint8_t *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    return p;
}

static int hex4(const uint8_t *p, uint32_t *code) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i];
        v <<= 4;
        if (c >= '0' && c <= '9') v |= c - '0';
        else if (c >= 'a' && c <= 'f') v |= c - 'a' + 10u;
        else if (c >= 'A' && c <= 'F') v |= c - 'A' + 10u;
        else return 0;
    }
    *code = v;
    return 1;
}

/* The character of the escape at p, behind its backslash, is written to `w`, never beyond `p`; NULL if it is none. */
static uint8_t *escape(uint8_t *p, uint8_t **w) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    if (*p != 'u') {
        const char *found = *p ? strchr(NAMES, *p) : NULL;
        if (!found) return NULL;
        *(*w)++ = (uint8_t)VALUES[found - NAMES];
        return p + 1;
    }
    uint32_t code, low;
    if (!hex4(p + 1, &code)) return NULL;
    p += 5;
    if (code >= 0xd800 && code < 0xe000) { /* a pair or nothing */
        if (code >= 0xdc00 || p[0] != '\\' || p[1] != 'u' || !hex4(p + 2, &low) || low < 0xdc00 || low > 0xdfff) return NULL;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        p += 6;
    }
    uint8_t *to = *w;
    if (code < 0x80) *to++ = (uint8_t)code;
    else if (code < 0x800) { *to++ = (uint8_t)(0xc0 | code >> 6); *to++ = (uint8_t)(0x80 | (code & 63)); }
    else if (code < 0x10000) {
        *to++ = (uint8_t)(0xe0 | code >> 12);
        *to++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *to++ = (uint8_t)(0x80 | (code & 63));
    } else {
        *to++ = (uint8_t)(0xf0 | code >> 18);
        *to++ = (uint8_t)(0x80 | (code >> 12 & 63));
        *to++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *to++ = (uint8_t)(0x80 | (code & 63));
    }
    *w = to;
    return p;
}

/* A text behind its first quote, decoded in its place; NULL if it is none. */
static inline uint8_t *text(uint8_t *p, Slice *found) {
    uint8_t *from = p, *w;
    found->at = from;
    found->escaped = 0;
    for (;;) {
        while (is_plain[*p]) p++;
        if (*p == '"') {
            found->n = (uint32_t)(p - from);
            return p + 1;
        }
        if (*p == '\\') break;
        int n = *p < 0x80 ? 0 : utf8(p);
        if (!n) return NULL;
        p += n;
    }
    found->escaped = 1;
    for (w = p; *p != '"';) {
        if (*p == '\\') {
            if (!(p = escape(p + 1, &w))) return NULL;
        } else {
            int n = is_plain[*p] ? 1 : *p < 0x80 ? 0 : utf8(p);
            if (!n) return NULL;
            while (n--) *w++ = *p++;
        }
    }
    found->n = (uint32_t)(w - from);
    return p + 1;
}
static inline uint8_t *integer(uint8_t *p, int64_t most, int64_t *found) {
    if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9')) return NULL;
    uint64_t v = 0;
    int n = 0;
    while (*p >= '0' && *p <= '9') {
        v = v * 10 + (uint64_t)(*p++ - '0');
        if (++n > 17) return NULL;
    }
    if (*p == '.' || *p == 'e' || *p == 'E' || v > (uint64_t)most) return NULL;
    *found = (int64_t)v;
    return p;
}
static inline uint8_t *flag(uint8_t *p, int64_t *found) {
    if (!memcmp(p, "true", 4)) { *found = 1; return p + 4; }
    if (!memcmp(p, "false", 5)) { *found = 0; return p + 5; }
    return NULL;
}

/* ---- objects: each field at most once, in any order, and no other */
enum { NAME, OPTIONAL_NAME, NUMBER, OPTIONAL_NUMBER, FLAG, TOUCHED, MUTATED, WAITS, ENTITY };
typedef struct { const char *name; uint8_t n, type; uint16_t offset; int64_t most; } Field;
#define FIELD(of, name, type, member, most) {name, sizeof(name) - 1, type, offsetof(of, member), most}

static const Field TOUCHED_FIELDS[] = {
    FIELD(Entry, "topic", NAME, topic, 1), FIELD(Entry, "partition", NUMBER, number, MAX_INT32), FIELD(Entry, "bytes", NUMBER, bytes, MAX_EXACT)};
static const Field MUTATED_FIELDS[] = {FIELD(Entry, "topic", NAME, topic, 1), FIELD(Entry, "partitions", NUMBER, number, MAX_INT32)};
static const Field ENTITY_FIELDS[] = {
    FIELD(Wait, "user", OPTIONAL_NAME, user, 0), FIELD(Wait, "client_id", OPTIONAL_NAME, client_id, 0), FIELD(Wait, "topic", OPTIONAL_NAME, topic, 0),
    FIELD(Wait, "partition", OPTIONAL_NUMBER, partition, MAX_INT32), FIELD(Wait, "tenant", OPTIONAL_NAME, tenant, 0)};
static const Field WAIT_FIELDS[] = {FIELD(Wait, "quota", NAME, quota, 1), {"entity", 6, ENTITY, 0, 0}, FIELD(Wait, "ms", NUMBER, ms, MOST_WAIT)};
static const Field EVENT_FIELDS[] = { /* in the order in which gateways write them, more or less */
    FIELD(Event, "api", NAME, api, 1), FIELD(Event, "request_id", OPTIONAL_NAME, request_id, 0),
    FIELD(Event, "timestamp_ms", OPTIONAL_NUMBER, timestamp_ms, MAX_TIMESTAMP_MS), FIELD(Event, "user", OPTIONAL_NAME, user, 0),
    FIELD(Event, "client_id", OPTIONAL_NAME, client_id, 0), FIELD(Event, "gateway", OPTIONAL_NAME, gateway, 0),
    FIELD(Event, "instance", OPTIONAL_NAME, instance, 0), {"throttled_by", 12, WAITS, 0, 0},
    FIELD(Event, "bytes", OPTIONAL_NUMBER, bytes, MAX_EXACT), FIELD(Event, "requests", NUMBER, requests, MAX_INT32),
    FIELD(Event, "request_time_ns", OPTIONAL_NUMBER, request_time_ns, MAX_EXACT), FIELD(Event, "network_time_ns", OPTIONAL_NUMBER, network_time_ns, MAX_EXACT),
    {"topic_partitions", 16, TOUCHED, 0, 0}, {"mutations", 9, MUTATED, 0, 0}, FIELD(Event, "api_version", OPTIONAL_NUMBER, api_version, MAX_INT16),
    FIELD(Event, "mutations_charged", OPTIONAL_NUMBER, mutations_charged, MAX_INT32), FIELD(Event, "withheld", FLAG, withheld, 0),
    FIELD(Event, "validate_only", FLAG, validate_only, 0), FIELD(Event, "cluster_action", FLAG, cluster_action, 0),
    FIELD(Event, "authenticating", FLAG, authenticating, 0), FIELD(Event, "purgatory_ms", NUMBER, purgatory_ms, MAX_INT32)};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint8_t *list(uint8_t *p, int type, Event *e);
static uint8_t *object(uint8_t *p, const Field *fields, size_t fields_n, void *into, Event *e, unsigned *seen);

static inline uint8_t *value(uint8_t *p, const Field *field, void *into, Event *e) {
    void *member = (uint8_t *)into + field->offset;
    unsigned seen = 0;
    switch (field->type) {
    case OPTIONAL_NAME:
        if (*p == 'n') return memcmp(p, "null", 4) ? NULL : p + 4;
        /* fall through */
    case NAME:
        if (*p != '"' || !(p = text(p + 1, member))) return NULL;
        return ((Slice *)member)->n < (uint32_t)field->most ? NULL : p;
    case OPTIONAL_NUMBER:
        if (*p == 'n') return memcmp(p, "null", 4) ? NULL : p + 4;
        /* fall through */
    case NUMBER: return integer(p, field->most, member);
    case FLAG: return flag(p, member);
    case ENTITY: return object(p, ENTITY_FIELDS, COUNT(ENTITY_FIELDS), into, e, &seen);
    default: return list(p, field->type, e);
    }
}

static uint8_t *object(uint8_t *p, const Field *fields, size_t fields_n, void *into, Event *e, unsigned *seen) {
    if (*p != '{') return NULL;
    p = blank(p + 1);
    if (*p == '}') return p + 1;
    for (;;) {
        Slice name;
        size_t field = 0;
        if (*p != '"' || !(p = text(p + 1, &name)) || name.escaped) return NULL;
        while (field < fields_n && !(fields[field].n == name.n && !memcmp(fields[field].name, name.at, name.n))) field++;
        if (field == fields_n || *seen >> field & 1) return NULL;
        *seen |= 1u << field;
        p = blank(p);
        if (*p != ':') return NULL;
        p = blank(p + 1);
        if (!(p = value(p, &fields[field], into, e))) return NULL;
        p = blank(p);
        if (*p == ',') { p = blank(p + 1); continue; }
        return *p == '}' ? p + 1 : NULL;
    }
}

/* One entry of a list of objects. */
static uint8_t *entry(uint8_t *p, int type, Event *e) {
    unsigned seen = 0;
    if (type == WAITS) {
        if (e->waits_n == MAX_WAITS) return NULL;
        Wait *wait = &e->waits[e->waits_n++];
        memset(wait, 0, sizeof *wait);
        wait->partition = ABSENT;
        if (!(p = object(p, WAIT_FIELDS, COUNT(WAIT_FIELDS), wait, e, &seen)) || seen != 7) return NULL;
        int names_nobody = !wait->user.at && !wait->client_id.at && !wait->topic.at && !wait->tenant.at && wait->partition == ABSENT;
        return names_nobody ? NULL : p;
    }
    int *n = type == TOUCHED ? &e->touched_n : &e->mutated_n;
    if (*n == (type == TOUCHED ? MAX_TOUCHED : MAX_MUTATED)) return NULL;
    Entry *of = type == TOUCHED ? &e->touched[*n] : &e->mutated[*n];
    ++*n;
    of->bytes = 0;
    if (type == TOUCHED) p = object(p, TOUCHED_FIELDS, COUNT(TOUCHED_FIELDS), of, e, &seen);
    else p = object(p, MUTATED_FIELDS, COUNT(MUTATED_FIELDS), of, e, &seen);
    return p && (seen & 3) == 3 ? p : NULL;
}

static uint8_t *list(uint8_t *p, int type, Event *e) {
    if (type == WAITS) {
        if (*p == 'n') return memcmp(p, "null", 4) ? NULL : p + 4;
        e->has_waits = 1;
    }
    if (*p != '[') return NULL;
    p = blank(p + 1);
    if (*p == ']') return p + 1;
    for (;;) {
        if (!(p = entry(p, type, e))) return NULL;
        p = blank(p);
        if (*p == ',') { p = blank(p + 1); continue; }
        return *p == ']' ? p + 1 : NULL;
    }
}

/* 1 if the event is plain. Zeros follow it. */
static int parse(uint8_t *p, size_t n, Event *e) {
    unsigned seen = 0;
    const uint8_t *end = p + n;
    memset(e, 0, offsetof(Event, touched));
    e->timestamp_ms = e->request_time_ns = e->network_time_ns = e->api_version = e->bytes = e->mutations_charged = ABSENT;
    e->requests = 1;
    p = object(blank(p), EVENT_FIELDS, COUNT(EVENT_FIELDS), e, e, &seen);
    return p && blank(p) == end && e->api.at && e->requests;
}

/* ---- what Python has told */
typedef struct {
    uint32_t prefix_at, prefix_n, entity_at, entity_n, shape_at, shape_n; /* in `texts`; the shape is msgpack */
    int32_t page;                                                         /* ABSENT: of its key */
    uint8_t has_user, has_client_id, has_topic, charges_n;
    uint8_t charges[MAX_CHARGES]; /* families */
} Counter;
typedef struct { uint32_t before, number, at[4], n[4]; } Mode; /* `number` 0: reported alone, in JSON of these texts, around topic, partition and bytes */
typedef struct { uint32_t counters_at, modes_at; uint8_t is_plain, counters_n, modes_n; } Plan; /* in `counter_list` and `mode_list` */
typedef struct { uint32_t at, n, number; uint64_t hash; } Known; /* a key, and the number of what it finds */
typedef struct { Text keys; Known *known; uint32_t *slots; uint32_t n, room, mask; uint64_t seed; } Map;
enum { BYTES = 1, REQUEST_TIME = 2, MUTATIONS = 3, REQUESTS = 4 };
typedef struct { char name[32]; uint8_t n; uint8_t moves_bytes, is_heartbeat; int16_t strict_from; } Api; /* `strict_from` ABSENT: no mutations */
enum { MAX_APIS = 64 };

/* A member of a tenant: its globs, in `globs`; an empty one has every name. `next` is the next one with the
 * same ends, which ranks lower. */
typedef struct { uint32_t user_at, user_n, client_id_at, client_id_n, tenant, next; } Member;
/* Members are found by so many bytes of a name before the first wildcard, or else after the last one; without wildcards by
 * all of it, which in `ends_list` is a `before` of 0. No padding: it is part of a key. */
typedef struct { uint16_t part, is_glob; uint32_t before, after; } Ends;
typedef struct { uint64_t hashes[2]; uint32_t tenant; } Found; /* a client's tenant, by two hashes of its names */
enum { MAX_FOUND = 1 << 16 };

typedef struct {
    int32_t pages, max_touched, max_mutated, max_event;
    int64_t max_future_ms, max_past_ms, max_partitions, max_awaited;
    double points, network_points, divisor;
    uint64_t seed;
} Settings;

typedef struct { uint32_t counter, touched; } Charged; /* in `counter_list`; the topic-partition, if it is of one */

typedef struct {
    Settings settings;
    Api apis[MAX_APIS];
    int apis_n;
    Text decision_head, decisions_topic, sums_topic; /* begin of ids; names in msgpack */
    Text batch, tightened;                           /* text of the micro-batch; of gateways: lengths, instance, text */
    int64_t first_ms, last_ms;                       /* bounds of the times of its events */
    Map plans, names, by_ends;
    Text plan_list, counter_list, mode_list, member_list, ends_list; /* arrays */
    Text globs;                                                      /* of members */
    Found *found;                                                    /* MAX_FOUND clients, each at the place of its first hash */
    Text texts;                              /* of plans */
    Text *rows, *records;
    uint32_t *rows_n, *records_n, *order;
    uint32_t touched_n;
    uint64_t bytes;
    Text key, said, unmetered, entities, counter_key, entity, record_key, gateway;
    double moved[MAX_TOUCHED];
    uint32_t distinct[MAX_TOUCHED], distinct_n;
    Charged charged[MAX_COUNTERS + MAX_MODES * MAX_TOUCHED];
    uint32_t charged_n;
    Event event;
    uint8_t copy[MAX_EVENT + 17];
} Planner;

static const Known *find(const Map *m, const Text *key) {
    if (!m->n) return NULL;
    uint64_t hash = hash_of(m->seed, key->data, key->length);
    for (uint32_t i = (uint32_t)hash & m->mask; m->slots[i]; i = (i + 1) & m->mask) {
        const Known *of = &m->known[m->slots[i] - 1];
        if (of->hash == hash && of->n == key->length && !memcmp(m->keys.data + of->at, key->data, key->length)) return of;
    }
    return NULL;
}

static int keep(Map *m, const Text *key, uint32_t number) {
    if (m->n == m->room) {
        uint32_t room = m->room ? 2 * m->room : 64;
        Known *known = realloc(m->known, room * sizeof(Known));
        if (!known) return NO_MEMORY;
        m->known = known;
        uint32_t *slots = calloc(4 * (size_t)room, sizeof(uint32_t));
        if (!slots) return NO_MEMORY;
        free(m->slots);
        m->slots = slots;
        m->room = room;
        m->mask = 4 * room - 1;
        for (uint32_t k = 0; k < m->n; k++) {
            uint32_t i = (uint32_t)known[k].hash & m->mask;
            while (slots[i]) i = (i + 1) & m->mask;
            slots[i] = k + 1;
        }
    }
    if (need(&m->keys, key->length)) return NO_MEMORY;
    Known *of = &m->known[m->n];
    *of = (Known){(uint32_t)m->keys.length, (uint32_t)key->length, number, hash_of(m->seed, key->data, key->length)};
    put(&m->keys, key->data, key->length);
    uint32_t i = (uint32_t)of->hash & m->mask;
    while (m->slots[i]) i = (i + 1) & m->mask;
    m->slots[i] = ++m->n;
    return 0;
}

static void drop(Text *t) {
    free(t->data);
    *t = (Text){NULL, 0, 0};
}

static void forget(Map *m) {
    uint64_t seed = m->seed;
    drop(&m->keys);
    free(m->known);
    free(m->slots);
    memset(m, 0, sizeof *m);
    m->seed = seed;
}

/* Bytes of what an array is before what one event adds to it: it is as large again if that may not fit. */
static size_t held(const Text *t) { return t->room - t->length < MAX_TOLD ? 2 * t->room : t->room; }
static size_t held_of(const Map *m) {
    size_t room = m->room - m->n <= MAX_TOUCHED * MAX_MODES ? 2 * (size_t)m->room : m->room;
    return held(&m->keys) + room * (sizeof(Known) + 4 * sizeof(uint32_t));
}

/* ---- names in JSON and in keys */
static void put_json(Text *t, Slice s) { /* needs 6 bytes for each of s, and 2 */
    put_byte(t, '"');
    if (!s.escaped) put(t, s.at, s.n);
    else for (uint32_t i = 0; i < s.n; i++) {
        uint8_t c = s.at[i];
        static const char NAMES[] = "btn.fr"; /* 8 to 13 */
        if (c == '"' || c == '\\') { put_byte(t, '\\'); put_byte(t, c); }
        else if (c >= 32) put_byte(t, c);
        else if (c >= 8 && c <= 13 && c != 11) { put_byte(t, '\\'); put_byte(t, (unsigned)NAMES[c - 8]); }
        else { PUT(t, "\\u00"); put_byte(t, "01"[c >> 4]); put_byte(t, "0123456789abcdef"[c & 15]); }
    }
    put_byte(t, '"');
}
static inline size_t json_room(Slice s) { return 8 + (s.escaped ? 6 : 1) * (size_t)s.n; }
static inline void put_or_null(Text *t, Slice s) { if (s.at) put_json(t, s); else PUT(t, "null"); }

static void put_encoded(Text *t, Slice s) { /* as `entity.sanitize`; needs 3 bytes for each of s */
    for (uint32_t i = 0; i < s.n; i++) {
        uint8_t c = s.at[i];
        if (is_unchanged[c]) put_byte(t, c);
        else { put_byte(t, '%'); put_byte(t, "0123456789ABCDEF"[c >> 4]); put_byte(t, "0123456789ABCDEF"[c & 15]); }
    }
}

/* ---- planning an event */
static const Api *api_of(const Planner *s, Slice name) {
    for (int i = 0; i < s->apis_n; i++)
        if (s->apis[i].n == name.n && !memcmp(s->apis[i].name, name.at, name.n)) return &s->apis[i];
    return NULL;
}

static int is_own(Planner *s, unsigned part, Slice name) { /* 1 if a quota names it; s->key is written over */
    if (!s->names.n || !name.n) return 0;
    s->key.length = 0;
    put_byte(&s->key, part);
    put(&s->key, name.at, name.n);
    return find(&s->names, &s->key) != NULL;
}

/* Needs 2 bytes and those of both names. The first one's length is there, so two names can't be read as two others. */
static void put_names(Text *t, Slice user, Slice client_id) {
    put_byte(t, user.n & 255); /* at most 256 */
    put_byte(t, user.n >> 8);
    put(t, user.at, user.n);
    put(t, client_id.at, client_id.n);
}

/* ---- tenants: the rule is `state.quotas.tenants` */
static inline size_t character(const uint8_t *p) { return *p < 0xc0 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4; }

static int matches(const uint8_t *glob, size_t n, Slice name) { /* `*` is any characters, `?` is one */
    size_t i = 0, k = 0, after_star = 0, from = 0;
    while (k < name.n) {
        if (i < n && glob[i] == '*') { after_star = ++i; from = k; }
        else if (i < n && glob[i] == '?') { i++; k += character(name.at + k); }
        else if (i < n && glob[i] == name.at[k]) { i++; k++; }
        else if (after_star) { i = after_star; from += character(name.at + from); k = from; }
        else return 0;
    }
    while (i < n && glob[i] == '*') i++;
    return i == n;
}

/* The key of the members whose glob begins or ends so. */
static void ends_key(Planner *s, const Ends *ends, const uint8_t *glob, size_t n) {
    s->key.length = 0;
    put(&s->key, ends, sizeof *ends);
    if (ends->before) put(&s->key, glob, ends->before);
    if (ends->after) put(&s->key, glob + n - ends->after, ends->after);
}

/* The tenant of the client, from 1; 0: none. Of the members that match, the last one told ranks highest. */
static uint32_t search_tenant(Planner *s, Slice user, Slice client_id) { /* s->key is written over */
    const Member *members = (const Member *)s->member_list.data;
    const Ends *lengths = (const Ends *)s->ends_list.data;
    uint32_t best = 0, tenant = 0;
    for (size_t i = 0; i < s->ends_list.length / sizeof(Ends); i++) {
        Slice name = lengths[i].part == 'u' ? user : client_id;
        Ends ends = lengths[i];
        if (!ends.is_glob) ends.before = name.n;
        if (ends.before > name.n || ends.after > name.n) continue;
        ends_key(s, &ends, name.at, name.n);
        const Known *known = find(&s->by_ends, &s->key);
        for (uint32_t number = known ? known->number : 0; number > best; number = members[number - 1].next) {
            const Member *one = &members[number - 1];
            if ((one->user_n && !matches(s->globs.data + one->user_at, one->user_n, user)) ||
                (one->client_id_n && !matches(s->globs.data + one->client_id_at, one->client_id_n, client_id))) continue;
            best = number;
            tenant = one->tenant;
        }
    }
    return tenant;
}

/* The same, kept by hashes with a random seed: thousands of globs that begin and end with wildcards are all compared. */
static uint32_t tenant_of(Planner *s, Slice user, Slice client_id) { /* s->key is written over */
    if (!s->found) return 0;
    s->key.length = 0;
    put_names(&s->key, user, client_id);
    uint64_t first = hash_of(s->settings.seed, s->key.data, s->key.length), second = hash_of(~s->settings.seed, s->key.data, s->key.length);
    Found *found = &s->found[first % MAX_FOUND];
    if (found->hashes[0] != first || found->hashes[1] != second) *found = (Found){{first, second}, search_tenant(s, user, client_id)};
    return found->tenant;
}

/* The key of the event's plan: what decides its charges (`plan_key.plan_key`), and its tenant, and its names if a quota names one. */
static void plan_key(Planner *s, const Event *e, const Api *api) {
    int strict = api && api->strict_from != ABSENT && (e->api_version == ABSENT || e->api_version >= api->strict_from);
    int has_bytes = e->touched_n ? e->bytes != 0 : e->bytes != ABSENT;
    int has_time = e->request_time_ns != ABSENT || e->network_time_ns != ABSENT;
    int by_name = is_own(s, 'u', e->user) || is_own(s, 'c', e->client_id);
    uint32_t tenant = tenant_of(s, e->user, e->client_id);
    Text *t = &s->key;
    t->length = 0;
    put_byte(t, api ? (unsigned)(api - s->apis) + 1 : 0);
    put_byte(t, (unsigned)(strict | e->validate_only << 1 | e->cluster_action << 2 | e->authenticating << 3 | e->withheld << 4 |
                           has_bytes << 5 | (e->mutated_n > 0) << 6 | (e->mutations_charged != ABSENT) << 7));
    put_byte(t, (unsigned)(has_time | (e->user.n > 0) << 1 | (e->client_id.n > 0) << 2));
    put(t, &tenant, sizeof tenant);
    if (by_name) put_names(t, e->user, e->client_id);
}

/* The distinct topic-partitions, each with the bytes of all its entries. */
static void sum_moved(Planner *s, const Event *e) {
    s->distinct_n = 0;
    for (int i = 0; i < e->touched_n; i++) {
        const Entry *one = &e->touched[i];
        uint32_t k = 0;
        for (; k < s->distinct_n; k++) {
            const Entry *other = &e->touched[s->distinct[k]];
            if (one->number == other->number && one->topic.n == other->topic.n && !memcmp(one->topic.at, other->topic.at, one->topic.n)) break;
        }
        if (k == s->distinct_n) {
            s->distinct[s->distinct_n++] = (uint32_t)i;
            s->moved[k] = 0.0;
        }
        s->moved[k] += (double)one->bytes;
    }
}

static inline int put_exact(Text *t, double v) { /* a whole double as JSON; needs 22 bytes */
    if (v >= EXACT_TEXT) return 0;
    put_number(t, (uint64_t)v);
    PUT(t, ".0");
    return 1;
}

static inline const Plan *plan_at(const Planner *s, uint32_t number) { return &((const Plan *)s->plan_list.data)[number]; }

/* The counters to charge, in order, and the amounts that are reported alone. */
static int find_counters(Planner *s, const Event *e, const Plan *plan) {
    uint32_t taken = 0;
    s->charged_n = 0;
    s->unmetered.length = 0;
    for (int m = 0; m < plan->modes_n; m++) {
        const Mode *mode = &((const Mode *)s->mode_list.data)[plan->modes_at + (uint32_t)m];
        for (; taken < mode->before && taken < plan->counters_n; taken++) s->charged[s->charged_n++] = (Charged){plan->counters_at + taken, 0};
        for (uint32_t k = 0; k < s->distinct_n; k++) {
            Slice topic = e->touched[s->distinct[k]].topic;
            if (!mode->number) {
                Text *t = &s->unmetered;
                if (need(t, 64 + json_room(topic) + mode->n[0] + mode->n[1] + mode->n[2] + mode->n[3])) return NO_MEMORY;
                if (s->unmetered.length) PUT(t, ",");
                put(t, s->texts.data + mode->at[0], mode->n[0]);
                put_json(t, topic);
                put(t, s->texts.data + mode->at[1], mode->n[1]);
                put_number(t, (uint64_t)e->touched[s->distinct[k]].number);
                put(t, s->texts.data + mode->at[2], mode->n[2]);
                if (!put_exact(t, s->moved[k])) return DECLINED;
                put(t, s->texts.data + mode->at[3], mode->n[3]);
                continue;
            }
            s->key.length = 0;
            put_byte(&s->key, 255); /* no API has this number */
            put_byte(&s->key, mode->number);
            put(&s->key, topic.at, topic.n);
            const Known *known = find(&s->plans, &s->key);
            if (!known) return UNKNOWN;
            const Plan *of_topic = plan_at(s, known->number);
            if (of_topic->counters_n) s->charged[s->charged_n++] = (Charged){of_topic->counters_at, k};
        }
    }
    for (; taken < plan->counters_n; taken++) s->charged[s->charged_n++] = (Charged){plan->counters_at + taken, 0};
    return DONE;
}

/* The part of the texts that waits need: their entities as JSON. */
static int write_entities(Planner *s, Event *e) {
    Text *t = &s->entities;
    t->length = 0;
    for (int i = 0; i < e->waits_n; i++) {
        Wait *wait = &e->waits[i];
        if (need(t, 100 + json_room(wait->user) + json_room(wait->client_id) + json_room(wait->topic) + json_room(wait->tenant))) return NO_MEMORY;
        wait->entity_at = (uint32_t)t->length;
        if (wait->ms > MAX_APPLIED_MS) wait->ms = MAX_APPLIED_MS;
        if (wait->user.at) { PUT(t, ",\"user\":"); put_json(t, wait->user); }
        if (wait->client_id.at) { PUT(t, ",\"client_id\":"); put_json(t, wait->client_id); }
        if (wait->topic.at) { PUT(t, ",\"topic\":"); put_json(t, wait->topic); }
        if (wait->partition != ABSENT) { PUT(t, ",\"partition\":"); put_number(t, (uint64_t)wait->partition); }
        if (wait->tenant.at) { PUT(t, ",\"tenant\":"); put_json(t, wait->tenant); }
        PUT(t, "}");
        t->data[wait->entity_at] = '{';
        wait->entity_n = (uint32_t)t->length - wait->entity_at;
    }
    return 0;
}

static void say_amounts(Text *t, const Event *e) {
    size_t before = t->length;
    PUT(t, ",\"amounts\":{");
    size_t first = t->length;
#define AMOUNT(name, v) do { PUT(t, ",\"" name "\":"); put_number(t, (uint64_t)(v)); } while (0)
    if (e->bytes != ABSENT) AMOUNT("bytes", e->bytes);
    if (e->request_time_ns != ABSENT) AMOUNT("request_time_ns", e->request_time_ns);
    if (e->network_time_ns != ABSENT) AMOUNT("network_time_ns", e->network_time_ns);
    for (int i = 0; i < e->touched_n; i++) {
        if (i) PUT(t, ","); else PUT(t, ",\"topic_partitions\":[");
        PUT(t, "{\"topic\":");
        put_json(t, e->touched[i].topic);
        AMOUNT("partition", e->touched[i].number);
        AMOUNT("bytes", e->touched[i].bytes);
        PUT(t, "}");
    }
    if (e->touched_n) PUT(t, "]");
    for (int i = 0; i < e->mutated_n; i++) {
        if (i) PUT(t, ","); else PUT(t, ",\"mutations\":[");
        PUT(t, "{\"topic\":");
        put_json(t, e->mutated[i].topic);
        AMOUNT("partitions", e->mutated[i].number);
        PUT(t, "}");
    }
    if (e->mutated_n) PUT(t, "]");
    if (e->mutations_charged != ABSENT) AMOUNT("mutations_charged", e->mutations_charged);
    if (e->api_version != ABSENT) AMOUNT("api_version", e->api_version);
    if (e->validate_only) PUT(t, ",\"validate_only\":true");
    if (e->cluster_action) PUT(t, ",\"cluster_action\":true");
    if (e->authenticating) PUT(t, ",\"authenticating\":true");
    if (e->purgatory_ms) AMOUNT("purgatory_ms", e->purgatory_ms);
    if (e->withheld) PUT(t, ",\"withheld\":true");
    if (e->requests != 1) AMOUNT("requests", e->requests);
#undef AMOUNT
    if (t->length == first) { t->length = before; return; }
    memmove(t->data + first, t->data + first + 1, t->length - first - 1); /* its comma */
    t->length--;
    PUT(t, "}");
}

/* The text that the decisions on events of this gateway share. */
static Slice batch_of(const Planner *s, Slice instance) {
    const Text *t = &s->tightened;
    if (instance.at)
        for (size_t at = 0; at < t->length;) {
            uint32_t of[2];
            memcpy(of, t->data + at, sizeof of);
            at += sizeof of;
            if (of[0] == instance.n && !memcmp(t->data + at, instance.at, of[0])) return (Slice){t->data + at + of[0], of[1], 0};
            at += (size_t)of[0] + of[1];
        }
    return (Slice){s->batch.data, (uint32_t)s->batch.length, 0};
}

/* The decision as if no counter were charged: `decision.undecided`. */
static int say(Planner *s, const Event *e, const Api *api, int32_t partition, int64_t offset) {
    Text *t = &s->said;
    Slice batch = batch_of(s, e->instance);
    size_t room = 1500 + s->decision_head.length + batch.n + s->unmetered.length + s->entities.length + json_room(e->api) + json_room(e->request_id) +
                  json_room(e->user) + json_room(e->client_id) + json_room(e->gateway) + json_room(e->instance);
    for (int i = 0; i < e->mutated_n; i++) room += 2 * json_room(e->mutated[i].topic) + 160;
    for (int i = 0; i < e->touched_n; i++) room += json_room(e->touched[i].topic) + 100;
    for (int i = 0; i < e->waits_n; i++) room += json_room(e->waits[i].quota) + 100;
    t->length = 0;
    if (need(t, room)) return NO_MEMORY;
    PUT(t, "{\"decision_id\":\"");
    size_t id = t->length;
    put(t, s->decision_head.data, s->decision_head.length);
    put_number(t, (uint64_t)partition);
    PUT(t, "-");
    put_number(t, (uint64_t)offset);
    size_t id_n = t->length - id;
    PUT(t, "\",\"request_id\":");
    if (e->request_id.at) put_json(t, e->request_id);
    else { PUT(t, "\""); put(t, t->data + id, id_n); PUT(t, "\""); }
    PUT(t, ",\"timestamp_ms\":");
    put_number(t, (uint64_t)e->timestamp_ms);
    PUT(t, ",\"user\":");
    put_or_null(t, e->user);
    PUT(t, ",\"client_id\":");
    put_or_null(t, e->client_id);
    PUT(t, ",\"api\":");
    put_json(t, e->api);
    PUT(t, ",\"gateway\":");
    put_or_null(t, e->gateway);
    PUT(t, ",\"verdict\":\"ALLOW\",\"throttle_time_ms\":0,\"mute_until_ms\":null,\"error_code\":0,\"topic_results\":[");
    for (int i = 0; api && api->strict_from != ABSENT && i < e->mutated_n; i++) {
        if (i) PUT(t, ",");
        PUT(t, "{\"topic\":");
        put_json(t, e->mutated[i].topic);
        PUT(t, ",\"error_code\":0,\"error_message\":null}");
    }
    PUT(t, "],\"decided_by\":");
    size_t place = (size_t)((const uint8_t *)memchr(batch.at, '\n', batch.n) - batch.at);
    put(t, batch.at, place);
    put(t, s->unmetered.data, s->unmetered.length);
    put(t, batch.at + place + 1, batch.n - place - 1);
    PUT(t, ",\"instance\":");
    put_or_null(t, e->instance);
    if (e->has_waits) PUT(t, ",\"throttled_by\":[");
    for (int i = 0; i < e->waits_n; i++) {
        const Wait *wait = &e->waits[i];
        if (i) PUT(t, ",");
        PUT(t, "{\"quota\":");
        put_json(t, wait->quota);
        PUT(t, ",\"entity\":");
        put(t, s->entities.data + wait->entity_at, wait->entity_n);
        PUT(t, ",\"ms\":");
        put_number(t, (uint64_t)wait->ms);
        PUT(t, "}");
    }
    if (e->has_waits) PUT(t, "]");
    say_amounts(t, e);
    PUT(t, "}");
    return 0;
}

static void touch(Planner *s, uint32_t page) { /* a page's first row or record: pages go in this order */
    if (!s->rows_n[page] && !s->records_n[page]) s->order[s->touched_n++] = page;
}

static int record(Planner *s, uint32_t page, const Text *topic, const void *key, size_t key_n, const char *before, const Text *of, const char *after) {
    Text *t = &s->records[page];
    size_t n = strlen(before) + of->length + strlen(after);
    if (need(t, 16 + topic->length + key_n + n)) return NO_MEMORY;
    touch(s, page);
    put_byte(t, 0x93);
    put(t, topic->data, topic->length);
    pack_bin(t, key, key_n);
    pack_bin_head(t, n);
    put(t, before, strlen(before));
    put(t, of->data, of->length);
    put(t, after, strlen(after));
    s->records_n[page]++;
    return 0;
}

/* Key and entity of a counter, and its page. */
static uint32_t name_counter(Planner *s, const Event *e, const Counter *of, uint32_t touched) {
    Text *key = &s->counter_key, *entity = &s->entity;
    key->length = entity->length = 0;
    put(key, s->texts.data + of->prefix_at, of->prefix_n);
    if (of->has_topic) {
        const Entry *one = &e->touched[s->distinct[touched]];
        put_encoded(key, one->topic);
        PUT(key, "|");
        put_number(key, (uint64_t)one->number);
        PUT(entity, "{\"topic\":");
        put_json(entity, one->topic);
        PUT(entity, ",\"partition\":");
        put_number(entity, (uint64_t)one->number);
        PUT(entity, "}");
    } else if (of->has_user || of->has_client_id) {
        PUT(entity, "{");
        if (of->has_user) {
            put_encoded(key, e->user);
            PUT(entity, "\"user\":");
            put_json(entity, e->user);
            if (of->has_client_id) PUT(entity, ",");
        }
        PUT(key, "|");
        if (of->has_client_id) {
            put_encoded(key, e->client_id);
            PUT(entity, "\"client_id\":");
            put_json(entity, e->client_id);
        }
        PUT(entity, "}");
    } else put(entity, s->texts.data + of->entity_at, of->entity_n);
    return of->page == ABSENT ? crc32_of(key->data, key->length) % (uint32_t)s->settings.pages : (uint32_t)of->page;
}

static size_t amounts_n(const Event *e, const Counter *of) {
    size_t n = 0;
    for (int i = 0; i < of->charges_n; i++)
        n += of->charges[i] == REQUEST_TIME ? 2 : of->charges[i] == MUTATIONS && e->mutations_charged == ABSENT ? (size_t)e->mutated_n : 1;
    return n;
}

static void pack_amounts(Planner *s, Text *t, const Event *e, const Counter *of, uint32_t touched) {
    pack_list_head(t, amounts_n(e, of));
    for (int i = 0; i < of->charges_n; i++) {
        switch (of->charges[i]) {
        case BYTES:
            if (of->has_topic) pack_double(t, s->moved[touched]);
            else {
                uint64_t sum = e->bytes == ABSENT ? 0 : (uint64_t)e->bytes;
                for (int k = 0; e->bytes == ABSENT && k < e->touched_n; k++) sum += (uint64_t)e->touched[k].bytes;
                pack_double(t, (double)sum);
            }
            break;
        case REQUEST_TIME:
            pack_double(t, (double)(e->request_time_ns == ABSENT ? 0 : e->request_time_ns) * s->settings.points / s->settings.divisor);
            pack_double(t, (double)(e->network_time_ns == ABSENT ? 0 : e->network_time_ns) * s->settings.network_points);
            break;
        case REQUESTS: pack_double(t, (double)e->requests); break;
        default:
            if (e->mutations_charged != ABSENT) pack_double(t, (double)e->mutations_charged);
            else {
                int64_t left = s->settings.max_partitions;
                for (int k = 0; k < e->mutated_n; k++) {
                    int64_t charged = e->mutated[k].number < left ? e->mutated[k].number : left;
                    pack_double(t, (double)charged);
                    left -= charged;
                }
            }
        }
    }
}

/* The waits on counters of this row's entity, the longest of each quota, and whether the event is a sum: `Reported`. */
static void pack_reported(const Planner *s, Text *t, const Event *e) {
    const Wait *first[MAX_WAITS];
    int64_t longest[MAX_WAITS];
    int n = 0;
    for (int i = 0; i < e->waits_n; i++) {
        const Wait *wait = &e->waits[i];
        if (wait->entity_n != s->entity.length || memcmp(s->entities.data + wait->entity_at, s->entity.data, wait->entity_n)) continue;
        int k = 0;
        while (k < n && !(first[k]->quota.n == wait->quota.n && !memcmp(first[k]->quota.at, wait->quota.at, wait->quota.n))) k++;
        if (k == n) { first[n] = wait; longest[n++] = 0; }
        if (wait->ms > longest[k]) longest[k] = wait->ms;
    }
    if (!n && e->bytes == ABSENT) { put_byte(t, 0xc0); return; }
    put_byte(t, 0x92);
    if (n < 16) put_byte(t, 0x80 | (unsigned)n);
    else { put_byte(t, 0xde); big_endian(t, (uint64_t)n, 2); }
    for (int k = 0; k < n; k++) {
        pack_str(t, first[k]->quota.at, first[k]->quota.n);
        pack_number(t, (uint64_t)longest[k]);
    }
    put_byte(t, e->bytes == ABSENT ? 0xc2 : 0xc3);
}

static int write_row(Planner *s, const Event *e, int32_t partition, int64_t offset, uint32_t index, int is_asked) {
    const Charged *charged = &s->charged[index];
    const Counter *of = &((const Counter *)s->counter_list.data)[charged->counter];
    size_t room = 600 + of->prefix_n + of->entity_n + 9 * (size_t)MAX_NAME;
    if (need(&s->counter_key, room) || need(&s->entity, 2 * room)) return NO_MEMORY; /* names have at most MAX_NAME bytes */
    uint32_t page = name_counter(s, e, of, charged->touched);
    Text *t = &s->rows[page];
    size_t quotas = 0;
    for (int i = 0; i < e->waits_n; i++) quotas += e->waits[i].quota.n + 16;
    if (need(t, 160 + s->counter_key.length + s->entity.length + of->shape_n + 9 * amounts_n(e, of) + s->record_key.length + s->said.length + s->gateway.length +
                    quotas + e->instance.n)) return NO_MEMORY;
    touch(s, page);
    put_byte(t, 0x9f);
    pack_number(t, (uint64_t)partition);
    pack_number(t, (uint64_t)offset);
    pack_number(t, (uint64_t)e->timestamp_ms);
    pack_str(t, s->counter_key.data, s->counter_key.length);
    pack_bin(t, s->entity.data, s->entity.length);
    put(t, s->texts.data + of->shape_at, of->shape_n);
    pack_amounts(s, t, e, of, charged->touched);
    if (!index) {
        pack_bin(t, s->record_key.data, s->record_key.length);
        pack_bin(t, s->said.data, s->said.length);
    } else PUT(t, "\xc0\xc4\x00");
    pack_bin(t, s->gateway.data, s->gateway.length);
    pack_number(t, index);
    pack_number(t, s->charged_n);
    pack_number(t, (uint64_t)e->purgatory_ms);
    if (e->waits_n || e->bytes != ABSENT) pack_reported(s, t, e);
    else put_byte(t, 0xc0);
    if (is_asked && !index) pack_bin(t, e->instance.at, e->instance.n);
    else put_byte(t, 0xc0);
    s->rows_n[page]++;
    return 0;
}

/* The event's contract but for its fields alone: `parsing.parse_request` and `checks.check_gateway_fields`. */
static int is_valid(const Planner *s, Event *e, const Api *api, int64_t record_ms) {
    if (e->bytes != ABSENT && (!api || !api->moves_bytes || (e->bytes && e->touched_n))) return 0;
    if (e->mutations_charged != ABSENT && e->mutated_n) return 0;
    if (e->touched_n > s->settings.max_touched || e->mutated_n > s->settings.max_mutated) return 0;
    if (e->timestamp_ms == ABSENT) {
        if (record_ms < 0 || record_ms > MAX_TIMESTAMP_MS) return 0;
        e->timestamp_ms = record_ms;
    } else {
        if (record_ms < -MAX_TIMESTAMP_MS || record_ms > 2 * MAX_TIMESTAMP_MS) return 0;
        int64_t ahead_ms = e->timestamp_ms - record_ms;
        if (ahead_ms > s->settings.max_future_ms || -ahead_ms > s->settings.max_past_ms) return 0;
    }
    if (e->timestamp_ms < s->first_ms || e->timestamp_ms > s->last_ms) return 0;
    if (e->user.n > MAX_NAME || e->client_id.n > MAX_NAME || e->instance.n > MAX_INSTANCE) return 0;
    for (int i = 0; i < e->touched_n; i++)
        if (e->touched[i].topic.n > MAX_NAME) return 0;
    return !api || !api->is_heartbeat;
}

static int plan_event(Planner *s, const uint8_t *event, size_t n, int32_t partition, int64_t offset, int64_t record_ms) {
    Event *e = &s->event;
    if (!n || n > MAX_EVENT || n > (size_t)s->settings.max_event || partition < 0 || offset < 0) return DECLINED;
    memcpy(s->copy, event, n);
    memset(s->copy + n, 0, sizeof s->copy - MAX_EVENT);
    if (!parse(s->copy, n, e)) return DECLINED;
    const Api *api = api_of(s, e->api);
    if (!is_valid(s, e, api, record_ms)) return DECLINED;
    plan_key(s, e, api);
    const Known *known = find(&s->plans, &s->key);
    if (!known) return UNKNOWN;
    const Plan *plan = plan_at(s, known->number);
    if (!plan->is_plain) return DECLINED;
    sum_moved(s, e);
    int outcome = find_counters(s, e, plan);
    if (outcome) return outcome;
    if (write_entities(s, e) || say(s, e, api, partition, offset)) return NO_MEMORY;
    Text *key = &s->record_key, *gateway = &s->gateway;
    key->length = gateway->length = 0;
    if (need(key, 3 * ((size_t)e->user.n + e->client_id.n) + 1) || need(gateway, 16 + json_room(e->instance))) return NO_MEMORY;
    put_encoded(key, e->user);
    PUT(key, "|");
    put_encoded(key, e->client_id);
    put_or_null(gateway, e->instance);
    if (e->has_waits) PUT(gateway, ",true"); else PUT(gateway, ",false");
    int is_asked = e->mutated_n && !e->has_waits && e->instance.at;
    for (uint32_t index = 0; index < s->charged_n; index++)
        if (write_row(s, e, partition, offset, index, is_asked)) return NO_MEMORY;
    if (s->charged_n) return DONE;
    uint32_t page = (uint32_t)(offset % s->settings.pages);
    if (record(s, page, &s->decisions_topic, key->data, key->length, "", &s->said, "")) return NO_MEMORY;
    if (is_asked && s->said.length <= (size_t)s->settings.max_awaited &&
        record(s, page, &s->sums_topic, e->instance.at, e->instance.n, "{\"answer\":", &s->said, "}")) return NO_MEMORY;
    return DONE;
}

/* ---- for Python */
API int native_abi(void) { return ABI; }
API const char *native_sources(void) { return SOURCES; } /* their digest, of the build */

static int set(Text *t, const uint8_t *from, size_t n) {
    t->length = 0;
    if (need(t, n + 1)) return NO_MEMORY;
    put(t, from, n);
    return 0;
}

API void plan_free(Planner *s) {
    if (!s) return;
    for (int i = 0; i < s->settings.pages; i++) {
        if (s->rows) free(s->rows[i].data);
        if (s->records) free(s->records[i].data);
    }
    Text *texts[] = {&s->decision_head, &s->decisions_topic, &s->sums_topic, &s->batch, &s->tightened, &s->texts, &s->plan_list, &s->counter_list, &s->mode_list, &s->key, &s->said, &s->unmetered,
                     &s->entities, &s->counter_key, &s->entity, &s->record_key, &s->gateway, &s->member_list, &s->ends_list, &s->globs};
    for (size_t i = 0; i < COUNT(texts); i++) free(texts[i]->data);
    Map *maps[] = {&s->plans, &s->names, &s->by_ends};
    for (size_t i = 0; i < COUNT(maps); i++) forget(maps[i]);
    free(s->rows); free(s->records); free(s->rows_n); free(s->records_n); free(s->order); free(s->found);
    free(s);
}

/* Topics: that in ids as JSON without quotes, the others as msgpack. NULL without memory. */
API Planner *plan_new(const Settings *settings, const uint8_t *head, size_t head_n, const uint8_t *decisions, size_t decisions_n, const uint8_t *sums, size_t sums_n) {
    make_tables();
    size_t pages = (size_t)settings->pages;
    Planner *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->settings = *settings;
    s->plans.seed = s->names.seed = s->by_ends.seed = settings->seed;
    s->rows = calloc(pages, sizeof(Text));
    s->records = calloc(pages, sizeof(Text));
    s->rows_n = calloc(pages, 4);
    s->records_n = calloc(pages, 4);
    s->order = calloc(pages, 4);
    if (!s->rows || !s->records || !s->rows_n || !s->records_n || !s->order || need(&s->key, 16 + 2 * MAX_NAME) || need(&s->unmetered, 16) ||
        set(&s->decision_head, head, head_n) || set(&s->decisions_topic, decisions, decisions_n) || set(&s->sums_topic, sums, sums_n)) {
        plan_free(s);
        return NULL;
    }
    return s;
}

API int plan_api(Planner *s, const uint8_t *name, size_t n, int moves_bytes, int is_heartbeat, int strict_from) {
    if (s->apis_n == MAX_APIS || n >= sizeof s->apis[0].name) return NO_MEMORY;
    Api *api = &s->apis[s->apis_n++];
    memcpy(api->name, name, n);
    api->n = (uint8_t)n;
    api->moves_bytes = (uint8_t)moves_bytes;
    api->is_heartbeat = (uint8_t)is_heartbeat;
    api->strict_from = (int16_t)strict_from;
    return 0;
}

/* A user (`part` 'u') or client-id ('c') that a quota names. */
API int plan_name(Planner *s, int part, const uint8_t *name, size_t n) {
    if (n > MAX_NAME) return 0; /* an event with it is declined */
    s->key.length = 0;
    put_byte(&s->key, (unsigned)part);
    put(&s->key, name, n);
    return keep(&s->names, &s->key, 0);
}

/* A member of a tenant, which is a number from 1; told from the one that ranks lowest to the highest. `part` has the glob
 * that it is found by, with so many bytes before the first wildcard, or else after the last one: `tenants.glob_ends`. */
API int plan_member(Planner *s, int part, int is_glob, size_t before, size_t after, const uint8_t *user, size_t user_n, const uint8_t *client_id, size_t client_id_n, uint32_t tenant) {
    if (before > MAX_NAME || after > MAX_NAME) return 0; /* an event that it matches is declined */
    if (!s->found && !(s->found = calloc(MAX_FOUND, sizeof(Found)))) return NO_MEMORY;
    Ends ends = {(uint16_t)part, (uint16_t)is_glob, (uint32_t)before, (uint32_t)after};
    if (part == 'u') ends_key(s, &ends, user, user_n);
    else ends_key(s, &ends, client_id, client_id_n);
    Member member = {(uint32_t)s->globs.length, (uint32_t)user_n, (uint32_t)(s->globs.length + user_n), (uint32_t)client_id_n, tenant, 0};
    uint32_t number = (uint32_t)(s->member_list.length / sizeof member) + 1;
    const Known *known = find(&s->by_ends, &s->key);
    if (known) {
        member.next = known->number;
        s->by_ends.known[known - s->by_ends.known].number = number;
    } else if (keep(&s->by_ends, &s->key, number)) return NO_MEMORY;
    if (need(&s->globs, user_n + client_id_n) || need(&s->member_list, sizeof member) || need(&s->ends_list, sizeof ends)) return NO_MEMORY;
    put(&s->globs, user, user_n);
    put(&s->globs, client_id, client_id_n);
    put(&s->member_list, &member, sizeof member);
    if (!is_glob) ends.before = 0; /* the whole name */
    for (size_t at = 0; at < s->ends_list.length; at += sizeof ends)
        if (!memcmp(s->ends_list.data + at, &ends, sizeof ends)) return 0;
    put(&s->ends_list, &ends, sizeof ends);
    return 0;
}

/* A sender may make one page after another large: the bytes that a page keeps are bounded. */
static void empty(Text *t, size_t most) {
    if (t->room > most) drop(t);
    t->length = 0;
}

static void clear_pages(Planner *s) {
    size_t most = MAX_KEPT / (size_t)s->settings.pages;
    for (uint32_t i = 0; i < s->touched_n; i++) {
        uint32_t page = s->order[i];
        s->rows_n[page] = s->records_n[page] = 0;
        empty(&s->rows[page], most);
        empty(&s->records[page], most);
    }
    s->touched_n = 0;
    s->bytes = 0;
}

API int plan_begin(Planner *s, const uint8_t *batch, size_t n, int64_t first_ms, int64_t last_ms) {
    s->first_ms = first_ms;
    s->last_ms = last_ms;
    clear_pages(s); /* of an attempt that broke off */
    s->tightened.length = 0;
    return set(&s->batch, batch, n);
}

API int plan_tighten(Planner *s, const uint8_t *instance, size_t instance_n, const uint8_t *batch, size_t batch_n) {
    Text *t = &s->tightened;
    uint32_t of[2] = {(uint32_t)instance_n, (uint32_t)batch_n};
    if (need(t, sizeof of + instance_n + batch_n)) return NO_MEMORY;
    put(t, of, sizeof of);
    put(t, instance, instance_n);
    put(t, batch, batch_n);
    return 0;
}

API void plan_forget(Planner *s) {
    Text *texts[] = {&s->texts, &s->plan_list, &s->counter_list, &s->mode_list};
    for (size_t i = 0; i < COUNT(texts); i++) drop(texts[i]);
    forget(&s->plans);
}

/* Bytes that are held of plans when one more event has been told: what `plan_forget` gives back. */
API uint64_t plan_held(const Planner *s) {
    return held(&s->texts) + held(&s->plan_list) + held(&s->counter_list) + held(&s->mode_list) + held_of(&s->plans);
}

/* The number of a new plan; `is_plain` 0: its events are declined. */
API int plan_make(Planner *s, int is_plain) {
    Plan plan = {(uint32_t)(s->counter_list.length / sizeof(Counter)), (uint32_t)(s->mode_list.length / sizeof(Mode)), (uint8_t)is_plain, 0, 0};
    if (need(&s->plan_list, sizeof plan)) return NO_MEMORY;
    put(&s->plan_list, &plan, sizeof plan);
    return (int)(s->plan_list.length / sizeof plan) - 1;
}

static Plan *last_plan(Planner *s) { return (Plan *)(s->plan_list.data + s->plan_list.length) - 1; }

static uint32_t add_text(Planner *s, const uint8_t *from, size_t n) {
    uint32_t at = (uint32_t)s->texts.length;
    put(&s->texts, from, n);
    return at;
}

/* Adds a counter to the last plan made. `has`: 1 user, 2 client-id, 4 topic. With too many the plan isn't plain. */
API int plan_counter(Planner *s, const uint8_t *prefix, size_t prefix_n, const uint8_t *entity, size_t entity_n, const uint8_t *shape, size_t shape_n,
                     int page, int has, const uint8_t *charges, size_t charges_n) {
    Plan *of = last_plan(s);
    int is_plain = of->counters_n < MAX_COUNTERS && charges_n <= MAX_CHARGES && prefix_n <= 4096 && entity_n <= 4096;
    for (size_t i = 0; i < charges_n; i++) is_plain = is_plain && charges[i] >= BYTES && charges[i] <= REQUESTS;
    if (!is_plain) { of->is_plain = 0; return 0; }
    if (need(&s->texts, prefix_n + entity_n + shape_n) || need(&s->counter_list, sizeof(Counter))) return NO_MEMORY;
    Counter made = {0}, *counter = &made;
    counter->prefix_at = add_text(s, prefix, prefix_n); counter->prefix_n = (uint32_t)prefix_n;
    counter->entity_at = add_text(s, entity, entity_n); counter->entity_n = (uint32_t)entity_n;
    counter->shape_at = add_text(s, shape, shape_n); counter->shape_n = (uint32_t)shape_n;
    counter->page = page;
    counter->has_user = has & 1; counter->has_client_id = has >> 1 & 1; counter->has_topic = has >> 2 & 1;
    memcpy(counter->charges, charges, charges_n);
    counter->charges_n = (uint8_t)charges_n;
    put(&s->counter_list, counter, sizeof made);
    of->counters_n++;
    return 0;
}

/* Adds the charges of topic-partitions to the last plan made: counters of plans that are kept under `number`, or, if 0, these texts. */
API int plan_mode(Planner *s, int before, int number, const uint8_t *texts, const uint32_t *texts_n) {
    Plan *of = last_plan(s);
    if (of->modes_n == MAX_MODES || number > 255) { of->is_plain = 0; return 0; }
    Mode mode = {(uint32_t)before, (uint32_t)number, {0}, {0}};
    if (need(&s->mode_list, sizeof mode)) return NO_MEMORY;
    for (int i = 0; i < 4; i++) {
        if (need(&s->texts, texts_n[i])) return NO_MEMORY;
        mode.at[i] = add_text(s, texts, texts_n[i]);
        mode.n[i] = texts_n[i];
        texts += texts_n[i];
    }
    put(&s->mode_list, &mode, sizeof mode);
    of->modes_n++;
    return 0;
}

/* Keeps the plan for events of this key: that of `plan_key`, or 255, a mode's number, and a topic. 1 if it is new. */
API int plan_keep(Planner *s, const uint8_t *key, size_t n, int plan) {
    Text of = {(uint8_t *)key, n, n};
    if (find(&s->plans, &of)) return 0;
    return keep(&s->plans, &of, (uint32_t)plan) ? NO_MEMORY : 1;
}

/* The key of the event that was UNKNOWN, as if its topics were known. */
API size_t plan_key_of(Planner *s, uint8_t *key) {
    plan_key(s, &s->event, api_of(s, s->event.api));
    memcpy(key, s->key.data, s->key.length);
    return s->key.length;
}

/* Plans events `first` to `last` until one isn't planned, or `most_bytes` of events are: the number of the next event,
 * and what became of the one there. One that is UNKNOWN comes again when its plan is told. */
API int64_t plan_events(Planner *s, const uint8_t *values, const int32_t *ends, const int32_t *partitions, const int64_t *offsets, const int64_t *times_ms,
                        int64_t first, int64_t last, uint64_t most_bytes, int32_t *outcome) {
    *outcome = DONE;
    for (; first < last && s->bytes < most_bytes; first++) {
        size_t n = (size_t)(ends[first + 1] - ends[first]);
        *outcome = plan_event(s, values + ends[first], n, partitions[first], offsets[first], times_ms[first]);
        if (*outcome == UNKNOWN) break;
        s->bytes += n < LEAST_EVENT ? LEAST_EVENT : n; /* a dead letter is longer than an event without bytes */
        if (*outcome) break;
    }
    return first;
}

/* What Python planned: `is_record` says whether it is a charge row or a record, in msgpack. */
API int plan_add(Planner *s, int page, int is_record, const uint8_t *packed, size_t n) {
    Text *t = is_record ? &s->records[page] : &s->rows[page];
    if (need(t, n)) return NO_MEMORY;
    touch(s, (uint32_t)page);
    put(t, packed, n);
    if (is_record) s->records_n[page]++; else s->rows_n[page]++;
    return 0;
}

/* Number and bytes of the page batches. */
API size_t plan_size(const Planner *s, uint32_t *pages) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->touched_n; i++) n += 11 + s->rows[s->order[i]].length + s->records[s->order[i]].length;
    *pages = s->touched_n;
    return n;
}

API uint64_t plan_bytes(const Planner *s) { return s->bytes; }

/* The page batches into `data`, of `plan_size` bytes, their pages and ends; begins anew. Returns the bytes written. */
API size_t plan_take(Planner *s, int32_t *pages, int32_t *ends, uint8_t *data, size_t room) {
    Text t = {data, 0, room};
    ends[0] = 0;
    for (uint32_t i = 0; i < s->touched_n; i++) {
        uint32_t page = s->order[i];
        pages[i] = (int32_t)page;
        put_byte(&t, 0x92);
        put_byte(&t, 0xdd);
        big_endian(&t, s->rows_n[page], 4);
        put(&t, s->rows[page].data, s->rows[page].length);
        pack_list_head(&t, s->records_n[page]);
        put(&t, s->records[page].data, s->records[page].length);
        ends[i + 1] = (int32_t)t.length;
    }
    clear_pages(s);
    return t.length;
}
