/* Charges plain rows: from stored pages and page batches to decisions, partial decisions, sums, waits and stored pages;
 * and combines these to decisions. All is equal to what Python's `sluice.streaming.enforce.pipeline` and `sluice.state`
 * make, which are the rule.
 *
 * A page is decided as a whole or not at all: one that isn't plain is DECLINED with nothing of it left, and Python decides
 * it. No length out of a page or a row is trusted: each is held against the bytes that are there. Memory is bounded by
 * the bytes of the call.
 */
#include "text.h"
#include <math.h>

enum {
    MAX_KINDS = 16, MAX_TOPICS = 4, GROUPS = 64,
    MAX_CHARGES = 8,             /* of a shape */
    MAX_LEVEL = 64, MAX_NAME = 48,
    MAX_SAMPLES = 1024,          /* of a rate */
    MAX_SAMPLES_OF_PAGE = 1 << 20,
    MAX_AMOUNTS = 4096,          /* of a row */
    SHAPES = 64,                 /* decoded at once; a power of 2 */
    GATEWAY_SLOTS = 4096,        /* a power of 2 */
    MAX_APPLIED_MS = 3600000,
    COLUMNS = 11,
    NO_ENTITY = -1,
};
#define MAX_TIMESTAMP_MS 253402300799999LL
#define MAX_INT32 2147483647LL
#define MAX_AMOUNT 1e20 /* 10 000 topic-partitions of 2^53 bytes */
#define MAX_LIMIT 1e30
#define MAX_STORED 1e40
#define UNLIMITED 9.223372036854775807e18
#define MAX_OUTPUT (1u << 30) /* bytes of a call's outputs of one kind: offsets in them have 31 bits */
#define LONG_WAIT_MS 5000

typedef struct { const uint8_t *at; uint32_t n; } Bytes; /* `at` NULL: nil */
static inline int same(Bytes a, Bytes b) { return a.n == b.n && !memcmp(a.at, b.at, a.n); }
static inline void put_bytes(Text *t, Bytes b) { put(t, b.at, b.n); }
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* An array of structs in a Text. */
#define AT(text, type, i) (&((type *)(text).data)[i])
#define LENGTH(text, type) ((uint32_t)((text).length / sizeof(type)))

/* ---- doubles as JSON: the shortest digits that are read back as the same double, the closest of those (Raffaello
 * Giulietti, "The Schubfach way to render doubles", 2020), in the form of msgspec. */
enum { FIRST_POWER = -292, POWERS = 617 };
static uint64_t powers[POWERS][2]; /* of 10, from FIRST_POWER on: high and low 64 bits of 128, rounded up */

API void doubles_init(const uint64_t *table) { memcpy(powers, table, sizeof powers); }

static inline uint64_t round_to_odd(const uint64_t power[2], uint64_t c) {
    unsigned __int128 x = (unsigned __int128)power[1] * c, y = (unsigned __int128)power[0] * c + (uint64_t)(x >> 64);
    return (uint64_t)(y >> 64) | ((uint64_t)y > 1);
}

/* `*digits` times 10 to the result, which is `value` > 0. */
static int shortest(uint64_t bits, uint64_t *digits) {
    uint64_t fraction = bits & ((1ULL << 52) - 1), c;
    int exponent = (int)(bits >> 52) & 2047, q;
    if (exponent) {
        c = fraction | 1ULL << 52;
        q = exponent - 1075;
        if (q <= 0 && q > -53 && !(c & ((1ULL << -q) - 1))) { *digits = c >> -q; return 0; }
    } else { c = fraction; q = -1074; }
    int odd = c & 1, is_closer = !fraction && exponent > 1;
    int k = (q * 1262611 - (is_closer ? 524031 : 0)) >> 22;
    int h = q + ((-k * 1741647) >> 19) + 1;
    const uint64_t *power = powers[-k - FIRST_POWER];
    uint64_t lower = round_to_odd(power, (4 * c - 2 + (uint64_t)is_closer) << h) + (uint64_t)odd;
    uint64_t value = round_to_odd(power, (4 * c) << h), upper = round_to_odd(power, (4 * c + 2) << h) - (uint64_t)odd;
    uint64_t s = value / 4;
    if (s >= 10) {
        uint64_t tens = s / 10;
        int up = lower <= 40 * tens, down = 40 * tens + 40 <= upper;
        if (up != down) { *digits = tens + (uint64_t)down; return k + 1; }
    }
    int up = lower <= 4 * s, down = 4 * s + 4 <= upper;
    if (up != down) { *digits = s + (uint64_t)down; return k; }
    uint64_t middle = 4 * s + 2;
    *digits = s + (uint64_t)(value > middle || (value == middle && (s & 1)));
    return k;
}

enum { MAX_DOUBLE = 32 };
static void put_double(Text *t, double v) { /* needs MAX_DOUBLE bytes */
    if (isnan(v) || isinf(v)) { PUT(t, "null"); return; }
    if (signbit(v)) { put_byte(t, '-'); v = -v; }
    if (v < 1e15 && (double)(uint64_t)v == v) { put_number(t, (uint64_t)v); PUT(t, ".0"); return; }
    uint64_t bits, digits;
    memcpy(&bits, &v, 8);
    int k = shortest(bits, &digits);
    while (digits % 10 == 0) { digits /= 10; k++; }
    char text[20];
    int n = 0, point;
    for (uint64_t left = digits; left; left /= 10) n++;
    for (int i = n; i--; digits /= 10) text[i] = (char)('0' + digits % 10);
    point = n + k; /* the value is 0.text times 10 to this */
    if (k >= 0 && point <= 16) {
        put(t, text, (size_t)n);
        while (k--) put_byte(t, '0');
        PUT(t, ".0");
    } else if (point > 0 && point <= 16) {
        put(t, text, (size_t)point);
        put_byte(t, '.');
        put(t, text + point, (size_t)(n - point));
    } else if (point > -5 && point <= 0) {
        PUT(t, "0.");
        while (point++ < 0) put_byte(t, '0');
        put(t, text, (size_t)n);
    } else {
        put_byte(t, (unsigned)text[0]);
        if (n > 1) { put_byte(t, '.'); put(t, text + 1, (size_t)n - 1); }
        put_byte(t, 'e');
        if (--point < 0) { put_byte(t, '-'); point = -point; }
        put_number(t, (uint64_t)point);
    }
}

/* Each of n doubles as JSON, with commas, into `text` of 32 bytes for each. Returns the length. */
API size_t doubles_text(const double *values, size_t n, uint8_t *text) {
    Text t = {text, 0, MAX_DOUBLE * n};
    for (size_t i = 0; i < n; i++) {
        if (i) put_byte(&t, ',');
        put_double(&t, values[i]);
    }
    return t.length;
}

/* ---- msgpack, never read beyond its end */
typedef struct { const uint8_t *p, *end; int failed; } Reader;

static inline int has(Reader *r, size_t n) {
    if ((size_t)(r->end - r->p) >= n) return 1;
    r->failed = 1;
    return 0;
}
static inline uint64_t big(Reader *r, int bytes) {
    uint64_t v = 0;
    if (!has(r, (size_t)bytes)) return 0;
    while (bytes--) v = v << 8 | *r->p++;
    return v;
}
static inline unsigned peek(Reader *r) { return has(r, 1) ? *r->p : 0xc1; /* which msgpack never uses */ }
static inline int read_nil(Reader *r) {
    if (peek(r) != 0xc0) return 0;
    r->p++;
    return 1;
}
static inline int64_t read_number(Reader *r) { /* from 0 to 2^63 - 1 */
    unsigned head = peek(r);
    if (head < 0x80) { r->p++; return (int64_t)head; }
    if (head < 0xcc || head > 0xcf) { r->failed = 1; return 0; }
    r->p++;
    uint64_t v = big(r, 1 << (head - 0xcc));
    if (v > INT64_MAX) r->failed = 1;
    return (int64_t)(v & INT64_MAX);
}
static inline int read_flag(Reader *r) {
    unsigned head = peek(r);
    if (head != 0xc2 && head != 0xc3) { r->failed = 1; return 0; }
    r->p++;
    return head == 0xc3;
}
static inline double read_double(Reader *r) {
    double d = 0.0;
    if (peek(r) != 0xcb) { r->failed = 1; return d; }
    r->p++;
    uint64_t bits = big(r, 8);
    memcpy(&d, &bits, 8);
    return d;
}
static inline Bytes take(Reader *r, uint64_t n) {
    Bytes b = {r->p, 0};
    if (n > UINT32_MAX || !has(r, (size_t)n)) { r->failed = 1; return b; }
    b.n = (uint32_t)n;
    r->p += n;
    return b;
}
static inline Bytes read_bin(Reader *r) {
    unsigned head = peek(r);
    if (head < 0xc4 || head > 0xc6) { r->failed = 1; return (Bytes){r->p, 0}; }
    r->p++;
    return take(r, big(r, 1 << (head - 0xc4)));
}
static inline Bytes read_bin_or_nil(Reader *r) { return read_nil(r) ? (Bytes){NULL, 0} : read_bin(r); }
static Bytes read_str(Reader *r) { /* UTF-8 */
    unsigned head = peek(r);
    uint64_t n = head & 31;
    if ((head & 0xe0) == 0xa0) r->p++;
    else if (head >= 0xd9 && head <= 0xdb) { r->p++; n = big(r, 1 << (head - 0xd9)); }
    else { r->failed = 1; return (Bytes){r->p, 0}; }
    Bytes b = take(r, n);
    for (uint32_t i = 0; i < b.n && !r->failed;) {
        if (b.at[i] < 0x80) { i++; continue; }
        uint8_t padded[4] = {0};
        memcpy(padded, b.at + i, b.n - i < 4 ? b.n - i : 4);
        int width = utf8(padded);
        if (!width) r->failed = 1;
        i += (uint32_t)width;
    }
    return b;
}
static inline uint64_t read_list(Reader *r) { /* its length */
    unsigned head = peek(r);
    if ((head & 0xf0) == 0x90) { r->p++; return head & 15; }
    if (head != 0xdc && head != 0xdd) { r->failed = 1; return 0; }
    r->p++;
    return big(r, head == 0xdc ? 2 : 4);
}
static inline uint64_t read_map(Reader *r) {
    unsigned head = peek(r);
    if ((head & 0xf0) == 0x80) { r->p++; return head & 15; }
    if (head != 0xde && head != 0xdf) { r->failed = 1; return 0; }
    r->p++;
    return big(r, head == 0xde ? 2 : 4);
}

/* ---- what Python tells at first */
enum { F_BYTES = 1, F_REQUEST_TIME = 2, F_MUTATIONS = 3, F_REQUESTS = 4 }; /* families */
typedef struct { char name[MAX_NAME]; uint8_t n, family, place, consumer; } Kind; /* by its code */

typedef struct {
    int32_t pages, max_entities, samples, most_gateways;
    int64_t window_ms, mutation_samples, mutation_window_ms, span_ms, idle_ms, max_record, max_awaited, overhead;
    double burst, span_s;
    uint64_t seed;
} Settings;

typedef struct {
    double limit; /* NaN: none */
    uint8_t kind, family, consumer, shadow, strict, withheld, before_n, after_n;
    uint32_t first; /* place of its first amount among those of a row with one topic */
    int is_from_end; /* behind those of mutations */
    uint8_t before[MAX_NAME + 32], after[MAX_LEVEL + 80]; /* JSON of the charge before its entity and after it */
} Charge;
typedef struct { Bytes encoded; uint32_t charges_n, length; int has_mutations; Charge charges[MAX_CHARGES]; } Shape;

/* ---- rows and counters */
typedef struct {
    Bytes key, entity, shape, record_key, said, gateway, reported, asked_by;
    const uint8_t *amounts; /* doubles in msgpack, each of 9 bytes */
    int64_t partition, offset, timestamp_ms, purgatory_ms, newest_ms;
    uint32_t amounts_n, index, rows, next, outcome; /* `next` row of the counter plus 1; `outcome` of one that is charged with others, plus 1 */
} Row;
typedef struct { uint8_t topic; Bytes key, value; } Record;
typedef struct { uint32_t first_row, end_row, first_record, end_record; int declined; } Page;

typedef struct { int64_t start_ms, last_ms; double value; } Sample;
typedef struct { uint32_t samples_at, count, room, current; uint8_t kind; } Rate;
typedef struct {
    int64_t last_event_ms, bucket_last_ms;
    double tokens, limit; /* NaN: no bucket */
    Bytes key;
    uint32_t rates_at, rates_n, first_row, last_row, rows_n; /* rows plus 1 */
} Entity;

typedef struct {
    double value, rate, tokens; /* `tokens` NaN: none */
    int64_t wait_ms;
    uint32_t refused_at, refused_n; /* flags of topics, in `refused` */
    int violated, any_refused;
} Outcome;

typedef struct { uint32_t gateway; double value, faded; int64_t until_ms, applied_ms; } Use;
typedef struct {
    double limit, fetch_bytes, wait_rate;
    int64_t from_ms, until_ms, fetches, wait_ms, wait_until_ms, wait_at_ms, wait_offset;
    int used, has_wait, wait_is_new;
    Text uses;
} Sum; /* of a counter's kind, while its rows are charged */
typedef struct { int used, is_long; double limit, rate; int64_t throttle_ms, timestamp_ms, offset; Bytes entity; } Note; /* of its long wait */
typedef struct { Bytes text; int64_t until_ms; } Gateway;

typedef struct { Text values, value_ends, keys, key_ends, has_key; } Keyed;

typedef struct {
    Settings settings;
    Kind kinds[MAX_KINDS];
    Text topics[MAX_TOPICS];
    uint32_t kinds_n, topics_n, decisions, sums; /* places of topics */
    Shape shapes[SHAPES];
    Text rows, records, pages, batches;
    int64_t base_ms;
    /* of a page */
    Text entities, rates, samples, table, new_entities, touched, kept, losses, numbers, reals;
    Text charges, refused, order, members, outcomes, partial_read;
    Sum of_kind[MAX_KINDS];
    Note notes[MAX_KINDS];
    /* outputs */
    Keyed keyed[MAX_TOPICS];
    Text partial[GROUPS], sums_text, sum_ends, stored, stored_ends, waits;
    uint32_t partial_n[GROUPS], waits_n, evicted[2]; /* counters that were at rest, and others */
    Text gateways, gateways_before;
    uint16_t gateway_slots[GATEWAY_SLOTS]; /* place plus 1 */
} Charger;

/* ---- rows of page batches */
static int is_key(Bytes key) { /* as `entity.sanitize` leaves names */
    int bad = !key.n;
    for (uint32_t i = 0; i < key.n; i++) bad |= key.at[i] < 0x20 || key.at[i] > 0x7e;
    return !bad;
}

static int read_reported(Reader *r, Bytes *reported) {
    reported->at = r->p;
    if (read_list(r) != 2) return 0;
    for (uint64_t n = read_map(r); n && !r->failed; n--) { read_str(r); read_number(r); }
    read_flag(r);
    reported->n = (uint32_t)(r->p - reported->at);
    return !r->failed;
}

static int read_row(Reader *r, Row *row) {
    if (read_list(r) != 15) return 0;
    row->partition = read_number(r);
    row->offset = read_number(r);
    row->timestamp_ms = read_number(r);
    row->key = read_str(r);
    row->entity = read_bin(r);
    row->shape = read_bin(r);
    uint64_t amounts = read_list(r);
    if (r->failed || amounts > MAX_AMOUNTS || !has(r, 9 * amounts)) return 0;
    row->amounts_n = (uint32_t)amounts;
    row->amounts = r->p;
    for (; amounts; amounts--) {
        double amount = read_double(r);
        if (!(amount >= 0 && amount <= MAX_AMOUNT) || signbit(amount)) return 0;
    }
    row->record_key = read_bin_or_nil(r);
    row->said = read_bin(r);
    row->gateway = read_bin(r);
    int64_t index = read_number(r), rows = read_number(r);
    row->purgatory_ms = read_number(r);
    if (read_nil(r)) row->reported = (Bytes){NULL, 0};
    else if (!read_reported(r, &row->reported)) return 0;
    row->asked_by = read_bin_or_nil(r);
    if (r->failed || index > INT32_MAX || rows < 1 || rows > INT32_MAX || row->purgatory_ms > MAX_INT32 || row->timestamp_ms > MAX_TIMESTAMP_MS ||
        row->partition > MAX_INT32 || row->offset > INT64_MAX / 2 || !is_key(row->key) || !row->entity.n || row->gateway.n < 7) return 0;
    row->index = (uint32_t)index;
    row->rows = (uint32_t)rows;
    row->next = row->outcome = 0;
    return 1;
}

static int read_records(Charger *s, Reader *r) {
    for (uint64_t n = read_list(r); n && !r->failed; n--) {
        if (read_list(r) != 3) return DECLINED;
        Bytes topic = read_str(r);
        Record record = {0, read_bin_or_nil(r), {NULL, 0}};
        record.value = read_bin(r);
        if (r->failed) return DECLINED;
        while (record.topic < s->topics_n && !same(topic, (Bytes){s->topics[record.topic].data, (uint32_t)s->topics[record.topic].length})) record.topic++;
        if (record.topic == s->topics_n) return DECLINED;
        if (need(&s->records, sizeof record)) return NO_MEMORY;
        put(&s->records, &record, sizeof record);
    }
    return r->failed ? DECLINED : DONE;
}

static int read_batch(Charger *s, const uint8_t *batch, size_t n) {
    Reader reader = {batch, batch + n, 0}, *r = &reader;
    if (read_list(r) != 2) return DECLINED;
    for (uint64_t rows = read_list(r); rows && !r->failed; rows--) {
        if (need(&s->rows, sizeof(Row))) return NO_MEMORY;
        Row *row = (Row *)(s->rows.data + s->rows.length);
        if (!read_row(r, row)) return DECLINED;
        s->rows.length += sizeof(Row);
    }
    if (r->failed) return DECLINED;
    int outcome = read_records(s, r);
    return outcome ? outcome : r->p == r->end ? DONE : DECLINED;
}

static double amount_of(const Row *row, uint32_t i) {
    uint64_t bits = 0;
    double d;
    const uint8_t *p = row->amounts + 9 * (size_t)i + 1;
    for (int k = 0; k < 8; k++) bits = bits << 8 | p[k];
    memcpy(&d, &bits, 8);
    return d;
}

/* ---- shapes */
static int kind_of(const Charger *s, Bytes name) { /* its code; -1: none has this name */
    for (uint32_t code = 0; code < s->kinds_n; code++)
        if (name.n && s->kinds[code].n == name.n && !memcmp(s->kinds[code].name, name.at, name.n)) return (int)code;
    return -1;
}

static int read_charge(const Charger *s, Reader *r, Charge *c) {
    if (read_list(r) != 7) return 0;
    Bytes kind = read_str(r), level = read_str(r);
    int is_unlimited = read_nil(r); /* a NaN that is read is damage */
    c->limit = is_unlimited ? NAN : read_double(r);
    c->shadow = (uint8_t)read_flag(r);
    if (read_list(r) != 0) return 0;
    c->strict = (uint8_t)read_flag(r);
    c->withheld = (uint8_t)read_flag(r);
    if (r->failed || level.n > MAX_LEVEL || !(is_unlimited || (c->limit >= 0 && c->limit <= MAX_LIMIT)) || signbit(c->limit)) return 0;
    int code = kind_of(s, kind);
    if (code < 0 || !s->kinds[code].family) return 0;
    c->kind = (uint8_t)code;
    for (uint32_t i = 0; i < level.n; i++)
        if (level.at[i] < 0x20 || level.at[i] > 0x7e || level.at[i] == '"' || level.at[i] == '\\') return 0;
    c->family = s->kinds[c->kind].family;
    c->consumer = s->kinds[c->kind].consumer;
    Text before = {c->before, 0, sizeof c->before}, after = {c->after, 0, sizeof c->after};
    PUT(&before, "{\"quota\":\"");
    put_bytes(&before, kind);
    PUT(&before, "\",\"entity\":");
    PUT(&after, ",\"matched\":\"");
    put_bytes(&after, level);
    PUT(&after, "\",\"limit\":");
    put_double(&after, c->limit);
    PUT(&after, ",\"value\":");
    c->before_n = (uint8_t)before.length;
    c->after_n = (uint8_t)after.length;
    return 1;
}

/* The shape of these bytes; NULL if it isn't plain. It is valid until the next call. */
static const Shape *shape_of(Charger *s, Bytes encoded) {
    Shape *of = &s->shapes[hash_of(s->settings.seed, encoded.at, encoded.n) & (SHAPES - 1)];
    if (of->encoded.at && same(of->encoded, encoded)) return of;
    of->encoded.at = NULL;
    Reader reader = {encoded.at, encoded.at + encoded.n, 0};
    uint64_t n = read_list(&reader);
    if (!n || n > MAX_CHARGES) return NULL;
    of->charges_n = (uint32_t)n;
    of->length = 0;
    of->has_mutations = 0;
    unsigned seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        Charge *c = &of->charges[i];
        if (!read_charge(s, &reader, c) || seen >> c->kind & 1) return NULL;
        seen |= 1u << c->kind;
        if (c->family == F_MUTATIONS && of->has_mutations) return NULL;
        c->first = of->length;
        c->is_from_end = of->has_mutations;
        of->has_mutations |= c->family == F_MUTATIONS;
        of->length += c->family == F_REQUEST_TIME ? 2 : 1;
    }
    if (reader.failed || reader.p != reader.end) return NULL;
    of->encoded = encoded;
    return of;
}

/* ---- arithmetic: see `sluice.state.arithmetic`, whose operations come in the same order here */
static int64_t round_half_up(double v) {
    if (isnan(v)) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    if (v <= -9223372036854775808.0) return INT64_MIN;
    double whole = floor(v);
    return (int64_t)whole + (v - whole >= 0.5);
}
static inline int64_t clamp_throttle(int64_t wait_ms) { return wait_ms < 0 ? 0 : wait_ms > MAX_INT32 ? MAX_INT32 : wait_ms; }

static int64_t padded_ms(int64_t elapsed_ms, int64_t samples, int64_t window_ms) {
    int64_t missing = samples - 1 - (int64_t)((double)elapsed_ms / (double)window_ms);
    if (missing > 0) elapsed_ms += missing * window_ms;
    return elapsed_ms > 1 ? elapsed_ms : 1;
}

/* The entity's rate of a kind, added if it has none; its number in `rates`, or -1 without memory. Rates are in the order
 * of their codes, and each has room for a further sample. */
static int64_t rate_of(Charger *s, Entity *e, unsigned kind, int64_t samples) {
    uint32_t place = 0, n = e->rates_n;
    while (place < n && AT(s->rates, Rate, e->rates_at + place)->kind < kind) place++;
    if (place == n || AT(s->rates, Rate, e->rates_at + place)->kind != kind) {
        if (need(&s->rates, (n + 1) * sizeof(Rate))) return -1;
        uint32_t to = LENGTH(s->rates, Rate);
        put(&s->rates, AT(s->rates, Rate, e->rates_at), place * sizeof(Rate));
        put(&s->rates, &(Rate){.kind = (uint8_t)kind}, sizeof(Rate));
        put(&s->rates, AT(s->rates, Rate, e->rates_at + place), (n - place) * sizeof(Rate));
        e->rates_at = to;
        e->rates_n++;
    }
    Rate *rate = AT(s->rates, Rate, e->rates_at + place);
    uint32_t room = (uint32_t)samples + 1 > rate->count ? (uint32_t)samples + 1 : rate->count;
    if (rate->room < room) {
        if (need(&s->samples, room * sizeof(Sample))) return -1;
        uint32_t to = LENGTH(s->samples, Sample);
        put(&s->samples, AT(s->samples, Sample, rate->samples_at), rate->count * sizeof(Sample));
        s->samples.length += (room - rate->count) * sizeof(Sample);
        rate->samples_at = to;
        rate->room = room;
    }
    return e->rates_at + place;
}

static void record(Rate *rate, Sample *of, double value, int64_t samples, int64_t window_ms, int64_t now_ms) {
    int opens = !rate->count;
    if (rate->count && now_ms - of[rate->current].start_ms >= window_ms) {
        rate->current = (uint32_t)((rate->current + 1) % (samples + 1));
        opens = 1;
    }
    if (opens) {
        of[rate->current] = (Sample){now_ms, now_ms, 0.0};
        if (rate->count <= rate->current) rate->count = rate->current + 1;
    }
    of[rate->current].value += value;
    of[rate->current].last_ms = now_ms;
}

/* The rate per second; with `empties`, outdated samples are emptied, as `observe` does, else it is `peek`. */
static double observe(const Rate *rate, Sample *of, int64_t samples, int64_t window_ms, int64_t now_ms, int empties, int64_t *length_ms) {
    int64_t outdated_ms = now_ms - samples * window_ms, oldest_ms = now_ms;
    double total = 0.0;
    for (uint32_t i = 0; i < rate->count; i++) {
        int is_outdated = of[i].last_ms <= outdated_ms;
        if (is_outdated && empties) of[i] = (Sample){now_ms, now_ms, 0.0};
        int64_t start_ms = is_outdated ? now_ms : of[i].start_ms;
        total += is_outdated ? 0.0 : of[i].value;
        if (!i || start_ms < oldest_ms) oldest_ms = start_ms;
    }
    *length_ms = padded_ms(now_ms - oldest_ms, samples, window_ms);
    return total / ((double)*length_ms / 1000.0);
}

static int charge_rate(Charger *s, Entity *e, const Shape *shape, const Charge *c, const Row *row, Outcome *o) {
    int64_t samples = s->settings.samples, window_ms = s->settings.window_ms, length_ms;
    int64_t number = rate_of(s, e, c->kind, samples);
    if (number < 0) return NO_MEMORY;
    Rate *rate = AT(s->rates, Rate, number);
    Sample *of = AT(s->samples, Sample, rate->samples_at);
    int64_t newest_ms = rate->count ? of[rate->current].last_ms : 0, now_ms = row->timestamp_ms > newest_ms ? row->timestamp_ms : newest_ms;
    uint32_t first = c->is_from_end ? c->first + row->amounts_n - shape->length : c->first;
    double amount = amount_of(row, first), later = 0.0;
    int is_time = c->family == F_REQUEST_TIME;
    o->value = amount;
    if (is_time) { later = amount_of(row, first + 1); o->value = amount + later; }
    else if (c->withheld) later = -amount;
    record(rate, of, amount, samples, window_ms, now_ms);
    o->rate = observe(rate, of, samples, window_ms, now_ms, 1, &length_ms);
    if (later != 0.0) record(rate, of, later, samples, window_ms, now_ms);
    o->violated = o->rate > c->limit; /* not of NaN */
    if (o->violated) {
        o->wait_ms = round_half_up((o->rate - c->limit) / c->limit * (double)length_ms);
        if (is_time && o->wait_ms > window_ms) o->wait_ms = window_ms;
    }
    return DONE;
}

/* A request's mutations on one counter. */
typedef struct {
    Entity *e;
    const Charge *c;
    Outcome *o;
    Rate *rate;
    Sample *samples;
    double limit, full, tokens;
    int64_t number, now_ms;
    int refuses;
} Mutations;

static void note_refusal(Mutations *m) {
    m->o->violated = 1;
    m->o->wait_ms = round_half_up(-m->tokens / m->limit * 1000.0);
}

/* KIP-599 on a client's counter, or on it and its tenant's: strict checks, then charges; permissive charges, then
 * checks. Topic by topic: one that a counter refuses is charged to none. */
static int charge_mutations(Charger *s, Mutations *all, uint32_t n, const Row *row, uint32_t first, uint32_t topics) {
    int64_t samples = s->settings.mutation_samples, window_ms = s->settings.mutation_window_ms, length_ms;
    if (need(&s->refused, n * topics)) return NO_MEMORY;
    for (Mutations *m = all; m < all + n; m++) {
        int has_rate = 0;
        for (uint32_t i = 0; i < m->e->rates_n; i++) has_rate |= AT(s->rates, Rate, m->e->rates_at + i)->kind == m->c->kind;
        if (has_rate != !isnan(m->e->tokens)) return DECLINED;
        m->number = rate_of(s, m->e, m->c->kind, samples);
        if (m->number < 0) return NO_MEMORY;
    }
    for (Mutations *m = all; m < all + n; m++) {
        Entity *e = m->e;
        m->rate = AT(s->rates, Rate, m->number);
        m->samples = AT(s->samples, Sample, m->rate->samples_at);
        m->now_ms = row->timestamp_ms > e->bucket_last_ms ? row->timestamp_ms : e->bucket_last_ms;
        m->limit = isnan(m->c->limit) ? UNLIMITED : m->c->limit;
        m->full = s->settings.burst * m->limit;
        m->tokens = (isnan(e->tokens) ? INFINITY : e->tokens) + m->limit * ((double)(m->now_ms - e->bucket_last_ms) / 1000.0);
        if (!(m->tokens < m->full)) m->tokens = m->full;
        e->limit = m->limit;
        e->bucket_last_ms = m->now_ms;
        if (row->timestamp_ms > e->last_event_ms) e->last_event_ms = row->timestamp_ms;
        *m->o = (Outcome){.refused_at = (uint32_t)s->refused.length, .refused_n = topics};
        s->refused.length += topics;
    }
    for (uint32_t i = 0; i < topics; i++) {
        int any = 0;
        for (Mutations *m = all; m < all + n; m++) {
            m->refuses = m->c->strict && m->tokens < 0;
            s->refused.data[m->o->refused_at + i] = (uint8_t)m->refuses;
            m->o->any_refused |= m->refuses;
            any |= m->refuses;
            if (m->refuses) note_refusal(m);
        }
        for (Mutations *m = all; m < all + n && !any; m++) {
            double amount = amount_of(row, first + i);
            record(m->rate, m->samples, amount, samples, window_ms, m->now_ms);
            m->tokens = m->tokens - amount < m->full ? m->tokens - amount : m->full;
            m->o->value += amount;
            if (!m->c->strict && m->tokens < 0) note_refusal(m);
        }
    }
    for (Mutations *m = all; m < all + n; m++) {
        m->e->tokens = m->tokens;
        m->o->rate = observe(m->rate, m->samples, samples, window_ms, m->now_ms, 0, &length_ms);
        m->o->tokens = isnan(m->c->limit) ? NAN : m->tokens;
    }
    return DONE;
}

/* ---- texts of a row */
static const char ALLOWED[] = ",\"verdict\":\"ALLOW\",\"throttle_time_ms\":0,\"mute_until_ms\":null,\"error_code\":0,\"topic_results\":[";
static const char BY_NOBODY[] = "],\"decided_by\":null,\"charges\":[";
static const char NOT_REFUSED[] = "\"error_code\":0,\"error_message\":null";
static const char REFUSED[] = "\"error_code\":89,\"error_message\":\"The throttling quota has been exceeded.\"";
#define TEXT_OF(literal) ((Bytes){(const uint8_t *)(literal), sizeof(literal) - 1})

static const uint8_t *find_in(const uint8_t *p, const uint8_t *end, Bytes what) {
    while ((size_t)(end - p) >= what.n && (p = memchr(p, what.at[0], (size_t)(end - p) - what.n + 1))) {
        if (!memcmp(p, what.at, what.n)) return p;
        p++;
    }
    return NULL;
}

static void say_charge(Text *t, const Charge *c, Bytes entity, const Outcome *o) {
    put(t, c->before, c->before_n);
    put_bytes(t, entity);
    put(t, c->after, c->after_n);
    put_double(t, o->value);
    PUT(t, ",\"rate\":");
    put_double(t, o->rate);
    PUT(t, ",\"throttle_ms\":");
    if (o->violated) {
        int64_t throttle_ms = clamp_throttle(o->wait_ms);
        put_number(t, (uint64_t)(o->any_refused && !throttle_ms ? 1 : throttle_ms));
        PUT(t, ",\"violated\":true");
    } else PUT(t, "0,\"violated\":false");
    if (c->family == F_MUTATIONS) {
        PUT(t, ",\"tokens\":");
        put_double(t, o->tokens);
    }
    if (c->shadow) PUT(t, ",\"mode\":\"shadow\"}"); else PUT(t, "}");
}

typedef struct { int64_t byte_ms, mutation_ms, request_ms; int byte_kind, is_any; const uint8_t *refused; uint32_t refused_n; } Waits;

static void pack_waits(const Charger *s, Text *t, const Waits *w) { /* `decision.Waits` */
    if (!w->is_any) { put_byte(t, 0xc0); return; }
    put_byte(t, 0x96);
    pack_number(t, (uint64_t)w->byte_ms);
    if (w->byte_kind < 0) put_byte(t, 0xc0); else pack_str(t, s->kinds[w->byte_kind].name, s->kinds[w->byte_kind].n);
    pack_number(t, (uint64_t)w->mutation_ms);
    pack_list_head(t, w->refused_n);
    for (uint32_t i = 0; i < w->refused_n; i++) put_byte(t, w->refused[i] ? 0xc3 : 0xc2);
    pack_number(t, (uint64_t)w->request_ms);
    put_byte(t, 0x90);
}

typedef struct { int64_t throttle_ms; int kind, is_rejected, is_allowed, any_refused; } Answer;

static Answer answer_of(const Charger *s, const Waits *w, int64_t purgatory_ms) {
    Answer a = {0};
    int all = w->refused_n > 0, mutations = -1, time = -1;
    for (uint32_t i = 0; i < w->refused_n; i++) { a.any_refused |= w->refused[i]; all &= w->refused[i]; }
    for (uint32_t k = 0; k < s->kinds_n; k++) {
        if (s->kinds[k].family == F_MUTATIONS) mutations = (int)k;
        if (s->kinds[k].family == F_REQUEST_TIME) time = (int)k;
    }
    int64_t mutation_ms = 0;
    if (w->mutation_ms || w->refused_n) {
        mutation_ms = w->mutation_ms - purgatory_ms;
        if (mutation_ms < a.any_refused) mutation_ms = a.any_refused;
    }
    if (w->request_ms >= w->byte_ms && w->request_ms >= mutation_ms) { a.throttle_ms = w->request_ms; a.kind = time; }
    else if (w->byte_ms >= mutation_ms) { a.throttle_ms = w->byte_ms; a.kind = w->byte_kind; }
    else { a.throttle_ms = mutation_ms; a.kind = mutations; }
    a.throttle_ms = clamp_throttle(a.throttle_ms);
    a.is_rejected = all;
    a.is_allowed = !all && !a.throttle_ms;
    return a;
}

/* The decision before its charges with another answer: `decision.give`. Needs room for said and a text of each flag. */
static int say_answer(const Charger *s, Text *t, Bytes said, const Waits *w, const Answer *a, int64_t timestamp_ms) {
    const uint8_t *end = said.at + said.n, *results = find_in(said.at, end, TEXT_OF(ALLOWED));
    if (!results) return DECLINED;
    put(t, said.at, (size_t)(results - said.at));
    results += sizeof ALLOWED - 1;
    const uint8_t *after = find_in(results, end, TEXT_OF(BY_NOBODY));
    if (!after || a->kind < 0) return DECLINED;
    PUT(t, ",\"verdict\":\"");
    if (a->is_rejected) PUT(t, "REJECT"); else PUT(t, "THROTTLE");
    PUT(t, "\",\"throttle_time_ms\":");
    put_number(t, (uint64_t)a->throttle_ms);
    PUT(t, ",\"mute_until_ms\":");
    put_number(t, (uint64_t)(timestamp_ms + a->throttle_ms));
    if (a->is_rejected) PUT(t, ",\"error_code\":89,\"topic_results\":["); else PUT(t, ",\"error_code\":0,\"topic_results\":[");
    uint32_t n = 0;
    for (const uint8_t *next; a->any_refused && (next = find_in(results, after, TEXT_OF(NOT_REFUSED))); n++) {
        put(t, results, (size_t)(next - results));
        if (n >= w->refused_n) return DECLINED;
        if (w->refused[n]) PUT(t, REFUSED); else PUT(t, NOT_REFUSED);
        results = next + sizeof NOT_REFUSED - 1;
    }
    if (a->any_refused && n != w->refused_n) return DECLINED;
    put(t, results, (size_t)(after - results));
    PUT(t, "],\"decided_by\":\"");
    put(t, s->kinds[a->kind].name, s->kinds[a->kind].n);
    PUT(t, "\",\"charges\":[");
    after += sizeof BY_NOBODY - 1;
    put(t, after, (size_t)(end - after));
    return DONE;
}

static int end_at(Text *ends, size_t length) {
    int32_t end = (int32_t)length;
    if (length > MAX_OUTPUT) return DECLINED;
    if (need(ends, sizeof end)) return NO_MEMORY;
    put(ends, &end, sizeof end);
    return DONE;
}

/* Ends a record whose value has been written. */
static int end_record(Keyed *k, Bytes key) {
    uint8_t has_key = key.at != NULL;
    if (need(&k->keys, key.n) || need(&k->has_key, 1)) return NO_MEMORY;
    put_bytes(&k->keys, key);
    put_byte(&k->has_key, has_key);
    int outcome = end_at(&k->key_ends, k->keys.length);
    return outcome ? outcome : end_at(&k->value_ends, k->values.length);
}

static int add_record(Charger *s, uint32_t topic, Bytes key, Bytes value) {
    Keyed *k = &s->keyed[topic];
    if (topic == s->decisions && (int64_t)key.n + value.n + s->settings.overhead > s->settings.max_record) return DECLINED;
    if (need(&k->values, value.n)) return NO_MEMORY;
    put_bytes(&k->values, value);
    return end_record(k, key);
}

static int say_decision(Charger *s, const Row *row, const Waits *w) {
    const Settings *of = &s->settings;
    Keyed *k = &s->keyed[s->decisions];
    Bytes said = row->said;
    size_t start = k->values.length, refusals = (size_t)w->refused_n * sizeof REFUSED;
    const uint8_t *end = said.at + said.n, *place = find_in(said.at, end, TEXT_OF(BY_NOBODY));
    if (!place || (place += sizeof BY_NOBODY - 1) == end) return DECLINED;
    if (need(&k->values, said.n + s->charges.length + refusals + 256)) return NO_MEMORY;
    Bytes before = {said.at, (uint32_t)(place - said.at)}, after = {place, (uint32_t)(end - place)};
    Answer a = {.is_allowed = 1};
    if (w->is_any) a = answer_of(s, w, row->purgatory_ms);
    if (a.is_allowed) put_bytes(&k->values, before);
    else {
        int outcome = say_answer(s, &k->values, before, w, &a, row->timestamp_ms);
        if (outcome) return outcome;
    }
    put(&k->values, s->charges.data, s->charges.length);
    if (*place != ']') put_byte(&k->values, ','); /* before those that are only reported */
    put_bytes(&k->values, after);
    size_t length = k->values.length - start;
    if (length > MAX_OUTPUT || (int64_t)(row->record_key.n + length) + of->overhead > of->max_record) return DECLINED;
    int outcome = end_record(k, row->record_key);
    if (outcome || !row->asked_by.at || (int64_t)length > of->max_awaited) return outcome;
    Keyed *sums = &s->keyed[s->sums];
    if (need(&sums->values, length + 16)) return NO_MEMORY;
    PUT(&sums->values, "{\"answer\":");
    put(&sums->values, k->values.data + start, length);
    PUT(&sums->values, "}");
    return end_record(sums, row->asked_by);
}

static int say_partial_decision(Charger *s, const Row *row, const Waits *w) {
    uint32_t group = (uint32_t)((row->partition + row->offset) % GROUPS);
    Text *t = &s->partial[group];
    if (need(t, 200 + row->record_key.n + row->said.n + s->charges.length + w->refused_n + row->asked_by.n)) return NO_MEMORY;
    if (!t->length) PUT(t, "\xdd...."); /* a list; `decide_partial_decisions` writes its length */
    put_byte(t, 0x9a);
    pack_number(t, (uint64_t)row->partition);
    pack_number(t, (uint64_t)row->offset);
    pack_number(t, row->index);
    pack_number(t, (uint64_t)row->timestamp_ms);
    pack_number(t, (uint64_t)row->purgatory_ms);
    if (row->record_key.at) pack_bin(t, row->record_key.at, row->record_key.n); else put_byte(t, 0xc0);
    pack_bin(t, row->said.at, row->said.n);
    pack_bin_head(t, s->charges.length + 2); /* a list */
    put_byte(t, '[');
    put(t, s->charges.data, s->charges.length);
    put_byte(t, ']');
    pack_waits(s, t, w);
    if (row->asked_by.at) pack_bin(t, row->asked_by.at, row->asked_by.n); else put_byte(t, 0xc0);
    s->partial_n[group]++;
    return t->length > MAX_OUTPUT ? DECLINED : DONE;
}

/* ---- combining: one decision of all partial ones of a request */
typedef struct { Row row; Bytes charges; Waits waits; uint32_t refused_at; } PartialDecision; /* `waits.refused` are there in `refused` */

static int read_waits(Charger *s, Reader *r, PartialDecision *partial) { /* `decision.Waits` */
    Waits *w = &partial->waits;
    *w = (Waits){.byte_kind = -1};
    partial->refused_at = (uint32_t)s->refused.length;
    if (read_nil(r)) return DONE;
    if (read_list(r) != 6) return DECLINED;
    w->is_any = 1;
    w->byte_ms = read_number(r);
    if (!read_nil(r) && (w->byte_kind = kind_of(s, read_str(r))) < 0) return DECLINED;
    w->mutation_ms = read_number(r);
    uint64_t n = read_list(r);
    if (n > MAX_AMOUNTS || !has(r, n)) return DECLINED;
    if (need(&s->refused, n)) return NO_MEMORY;
    w->refused_n = (uint32_t)n;
    while (n--) put_byte(&s->refused, (unsigned)read_flag(r));
    w->request_ms = read_number(r);
    return read_list(r) ? DECLINED : DONE; /* of sequential coexistence alone */
}

static int read_partial_decision(Charger *s, Reader *r, PartialDecision *partial) {
    Row *row = &partial->row;
    *partial = (PartialDecision){0};
    if (read_list(r) != 10) return DECLINED;
    row->partition = read_number(r);
    row->offset = read_number(r);
    int64_t number = read_number(r);
    row->timestamp_ms = read_number(r);
    row->purgatory_ms = read_number(r);
    row->record_key = read_bin_or_nil(r);
    row->said = read_bin(r);
    partial->charges = read_bin(r);
    int outcome = read_waits(s, r, partial);
    if (outcome) return outcome;
    row->asked_by = read_bin_or_nil(r);
    row->index = (uint32_t)number;
    return r->failed || number > INT32_MAX || row->purgatory_ms > MAX_INT32 || row->timestamp_ms > MAX_TIMESTAMP_MS ? DECLINED : DONE;
}

static int by_request_and_row(const void *a, const void *b) {
    const Row *x = &((const PartialDecision *)a)->row, *y = &((const PartialDecision *)b)->row;
    if (x->partition != y->partition) return x->partition < y->partition ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int say_request(Charger *s, const PartialDecision *first, const PartialDecision *end) { /* `pipeline.combine` of one */
    Waits all = {.byte_kind = -1};
    uint32_t most = 0;
    for (const PartialDecision *partial = first; partial < end; partial++) if (partial->waits.refused_n > most) most = partial->waits.refused_n;
    if (!first->row.said.n) return DECLINED;
    if (need(&s->refused, most + 1)) return NO_MEMORY;
    uint8_t *refused = s->refused.data + s->refused.length;
    if (most) memset(refused, 0, most);
    s->charges.length = 0;
    for (const PartialDecision *partial = first; partial < end; partial++) {
        const Waits *w = &partial->waits;
        if (partial->charges.n < 3 || partial->charges.at[0] != '[') return DECLINED;
        if (need(&s->charges, partial->charges.n + 1)) return NO_MEMORY;
        if (partial > first) put_byte(&s->charges, ',');
        put(&s->charges, partial->charges.at + 1, partial->charges.n - 2); /* without the brackets of a list */
        if (w->byte_ms > all.byte_ms) { all.byte_ms = w->byte_ms; all.byte_kind = w->byte_kind; }
        if (w->mutation_ms > all.mutation_ms) all.mutation_ms = w->mutation_ms;
        if (w->request_ms > all.request_ms) all.request_ms = w->request_ms;
        for (uint32_t i = 0; i < w->refused_n; i++) refused[i] |= s->refused.data[partial->refused_at + i];
        all.is_any |= w->is_any;
    }
    all.refused = refused;
    all.refused_n = most;
    return say_decision(s, &first->row, &all);
}

/* ---- sums: see `sluice.state.shares.sums` */
static int gateway_of(Charger *s, Bytes text, int64_t timestamp_ms, uint32_t *place) {
    uint32_t slot = (uint32_t)hash_of(s->settings.seed, text.at, text.n) & (GATEWAY_SLOTS - 1);
    while (s->gateway_slots[slot] && !same(AT(s->gateways, Gateway, s->gateway_slots[slot] - 1)->text, text)) slot = (slot + 1) & (GATEWAY_SLOTS - 1);
    if (!s->gateway_slots[slot]) {
        uint32_t n = LENGTH(s->gateways, Gateway);
        if ((int32_t)n >= s->settings.most_gateways) { /* names would fill the records */
            int charges_inline = text.n >= 4 && !memcmp(text.at + text.n - 4, "true", 4);
            Bytes nameless = charges_inline ? (Bytes){(const uint8_t *)"null,true", 9} : (Bytes){(const uint8_t *)"null,false", 10};
            if (!same(text, nameless)) return gateway_of(s, nameless, timestamp_ms, place);
        }
        if (n >= GATEWAY_SLOTS / 2) return DECLINED;
        if (need(&s->gateways, sizeof(Gateway))) return NO_MEMORY;
        put(&s->gateways, &(Gateway){text, 0}, sizeof(Gateway));
        s->gateway_slots[slot] = (uint16_t)(n + 1);
    }
    *place = s->gateway_slots[slot] - 1;
    Gateway *of = AT(s->gateways, Gateway, *place);
    if (timestamp_ms > of->until_ms) of->until_ms = timestamp_ms;
    return DONE;
}

static void forget_gateways(Charger *s, uint32_t n) { /* all from number n on */
    for (uint32_t i = LENGTH(s->gateways, Gateway); i > n; i--) {
        Bytes text = AT(s->gateways, Gateway, i - 1)->text;
        uint32_t slot = (uint32_t)hash_of(s->settings.seed, text.at, text.n) & (GATEWAY_SLOTS - 1);
        while (s->gateway_slots[slot] != i) slot = (slot + 1) & (GATEWAY_SLOTS - 1);
        s->gateway_slots[slot] = 0; /* the newest, so none is found by going over it */
    }
    s->gateways.length = n * sizeof(Gateway);
}

static int64_t applied_ms(const Charger *s, const Row *row, unsigned kind, int *sums_up) {
    int64_t applied = 0;
    Reader reader = {row->reported.at, row->reported.at + row->reported.n, 0};
    read_list(&reader);
    for (uint64_t n = read_map(&reader); n; n--) {
        Bytes name = read_str(&reader);
        int64_t ms = read_number(&reader);
        if (name.n == s->kinds[kind].n && !memcmp(name.at, s->kinds[kind].name, name.n)) applied = ms;
    }
    *sums_up = read_flag(&reader);
    return applied;
}

static int add_sum(Charger *s, const Charge *c, const Row *row, const Outcome *o) {
    if (c->shadow || isnan(c->limit)) return DONE;
    Sum *sum = &s->of_kind[c->kind];
    int64_t now_ms = row->timestamp_ms, applied = 0;
    int sums_up = 0;
    uint32_t place;
    int outcome = gateway_of(s, row->gateway, now_ms, &place);
    if (outcome) return outcome;
    if (row->reported.at) applied = applied_ms(s, row, c->kind, &sums_up);
    if (!sum->used) {
        Text uses = sum->uses;
        uses.length = 0;
        *sum = (Sum){.used = 1, .from_ms = now_ms, .until_ms = now_ms, .uses = uses};
    }
    sum->limit = c->limit;
    double value = c->withheld && c->consumer ? 0.0 : o->value;
    if (now_ms > sum->until_ms) sum->until_ms = now_ms;
    else if (now_ms < sum->from_ms) sum->from_ms = now_ms;
    uint32_t i = 0, n = LENGTH(sum->uses, Use);
    while (i < n && AT(sum->uses, Use, i)->gateway != place) i++;
    if (i == n) {
        if (need(&sum->uses, sizeof(Use))) return NO_MEMORY;
        put(&sum->uses, &(Use){place, value, value, now_ms, 0}, sizeof(Use));
    } else {
        Use *use = AT(sum->uses, Use, i);
        int64_t age_ms = now_ms - use->until_ms;
        use->value += value;
        if (!age_ms) use->faded += value;
        else if (age_ms > 0) {
            use->faded = use->faded * exp((double)-age_ms / 1000.0 / s->settings.span_s) + value;
            use->until_ms = now_ms;
        } else use->faded += value * exp((double)age_ms / 1000.0 / s->settings.span_s);
    }
    Use *use = AT(sum->uses, Use, i);
    if (applied > MAX_APPLIED_MS) applied = MAX_APPLIED_MS;
    if (applied > use->applied_ms) use->applied_ms = applied;
    if (c->consumer && !sums_up) {
        sum->fetches++;
        sum->fetch_bytes += o->value;
    }
    int64_t wait_ms = o->violated ? o->wait_ms : 0;
    if (c->family == F_MUTATIONS) wait_ms -= row->purgatory_ms;
    if (wait_ms < o->any_refused) wait_ms = o->any_refused;
    if (!wait_ms && !sum->has_wait) return DONE;
    if (wait_ms > MAX_INT32) wait_ms = MAX_INT32;
    int is_new = row->gateway.n >= 5 && !memcmp(row->gateway.at + row->gateway.n - 5, "false", 5);
    int64_t until_ms = now_ms + wait_ms;
    if (!is_new && sum->has_wait) {
        is_new = sum->wait_is_new;
        if (sum->wait_until_ms < until_ms) until_ms = sum->wait_until_ms;
        if (!sum->wait_ms) wait_ms = 0;
    }
    sum->has_wait = 1;
    sum->wait_ms = wait_ms;
    sum->wait_until_ms = until_ms;
    sum->wait_rate = c->family == F_MUTATIONS ? NAN : o->rate;
    sum->wait_at_ms = now_ms;
    sum->wait_offset = row->offset;
    sum->wait_is_new = is_new;
    return DONE;
}

static void say_sum(const Charger *s, Text *t, const Sum *sum, unsigned kind) { /* `_Counter.sum_of`, without defaults at the end */
    put_byte(t, '[');
    put_number(t, s->kinds[kind].place);
    put_byte(t, ',');
    put_double(t, sum->limit);
    put_byte(t, ',');
    put_number(t, (uint64_t)(sum->from_ms - s->base_ms));
    put_byte(t, ',');
    put_number(t, (uint64_t)(sum->until_ms - s->base_ms));
    PUT(t, ",[");
    for (uint32_t i = 0; i < LENGTH(sum->uses, Use); i++) {
        const Use *use = AT(sum->uses, Use, i);
        int64_t age_ms = sum->until_ms - use->until_ms;
        if (i) put_byte(t, ',');
        put_byte(t, '[');
        put_number(t, use->gateway);
        put_byte(t, ',');
        put_double(t, use->value);
        if (use->applied_ms || age_ms || use->faded != use->value) {
            put_byte(t, ',');
            put_number(t, (uint64_t)use->applied_ms);
            put_byte(t, ',');
            put_number(t, (uint64_t)age_ms);
            put_byte(t, ',');
            if (use->faded != use->value) put_double(t, use->faded); else PUT(t, "null");
        }
        put_byte(t, ']');
    }
    put_byte(t, ']');
    if (sum->has_wait) {
        PUT(t, ",[");
        put_number(t, (uint64_t)sum->wait_ms);
        put_byte(t, ',');
        put_number(t, (uint64_t)(sum->wait_until_ms - s->base_ms));
        put_byte(t, ',');
        put_double(t, sum->wait_rate);
        put_byte(t, ',');
        put_number(t, (uint64_t)(sum->wait_at_ms - s->base_ms));
        put_byte(t, ',');
        put_number(t, (uint64_t)sum->wait_offset);
        if (sum->wait_is_new) PUT(t, ",true]"); else PUT(t, ",false]");
    } else if (sum->fetches) PUT(t, ",null");
    if (sum->fetches) {
        PUT(t, ",[");
        put_number(t, (uint64_t)sum->fetches);
        put_byte(t, ',');
        put_double(t, sum->fetch_bytes);
        put_byte(t, ']');
    }
    put_byte(t, ']');
}

/* `EntitySums` of a counter whose rows have all been charged; begins anew. */
static int say_sums(Charger *s, Bytes entity) {
    Text *t = &s->sums_text;
    int any = 0, has_new = 0;
    for (unsigned kind = 0; kind < s->kinds_n; kind++) {
        Sum *sum = &s->of_kind[kind];
        if (!sum->used) continue;
        if (need(t, entity.n + 400 + 160 * (size_t)LENGTH(sum->uses, Use))) return NO_MEMORY;
        if (any) put_byte(t, ',');
        else { put_byte(t, '['); put_bytes(t, entity); PUT(t, ",["); }
        any = 1;
        has_new |= sum->has_wait && sum->wait_is_new && sum->wait_ms > 0;
        say_sum(s, t, sum, kind);
        sum->used = 0;
    }
    if (!any) return DONE;
    if (has_new) PUT(t, "],true]"); else PUT(t, "]]");
    return end_at(&s->sum_ends, t->length);
}

/* ---- long waits, for the waits topic: see `pipeline._note_waits` */
static void note_wait(Note *note, const Charge *c, const Row *row, const Outcome *o) {
    int is_long = o->violated && o->wait_ms > LONG_WAIT_MS;
    if (c->shadow || !(is_long || note->used)) return;
    double rate = c->family == F_MUTATIONS ? NAN : o->rate;
    *note = (Note){1, is_long, c->limit, rate, clamp_throttle(o->wait_ms), row->timestamp_ms, row->offset, row->entity};
}

static int say_long_waits(Charger *s) { /* msgpack, for Python */
    Text *t = &s->waits;
    for (unsigned kind = 0; kind < s->kinds_n; kind++) {
        Note *note = &s->notes[kind];
        if (!note->used) continue;
        if (need(t, 100 + note->entity.n)) return NO_MEMORY;
        put_byte(t, 0x97);
        pack_number(t, kind);
        pack_bin(t, note->entity.at, note->entity.n);
        pack_number(t, note->is_long ? (uint64_t)note->throttle_ms : 0);
        pack_double(t, note->limit);
        if (isnan(note->rate)) put_byte(t, 0xc0); else pack_double(t, note->rate);
        pack_number(t, (uint64_t)note->timestamp_ms);
        pack_number(t, (uint64_t)note->offset);
        s->waits_n++;
        note->used = 0;
    }
    return t->length > MAX_OUTPUT ? DECLINED : DONE;
}

/* ---- charging */
static uint32_t topics_of(const Shape *shape, const Row *row) { return row->amounts_n - shape->length + 1; }

/* The row's decision, finished or partial, and what gateways need to know of it. */
static int say_row(Charger *s, const Row *row, const Shape *shape, const Outcome *outcomes) {
    Waits w = {.byte_kind = -1};
    s->charges.length = 0;
    if (need(&s->charges, shape->charges_n * (size_t)(sizeof(Charge) + row->entity.n + 256))) return NO_MEMORY;
    for (uint32_t i = 0; i < shape->charges_n; i++) {
        const Charge *c = &shape->charges[i];
        const Outcome *o = &outcomes[i];
        if (i) put_byte(&s->charges, ',');
        say_charge(&s->charges, c, row->entity, o);
        w.is_any |= o->violated;
        if (o->violated && !c->shadow) {
            if (c->family == F_MUTATIONS) { w.mutation_ms = o->wait_ms; w.refused = s->refused.data + o->refused_at; w.refused_n = o->refused_n; }
            else if (c->family == F_REQUEST_TIME) w.request_ms = o->wait_ms;
            else if (o->wait_ms > w.byte_ms) { w.byte_ms = o->wait_ms; w.byte_kind = c->kind; }
        }
        note_wait(&s->notes[c->kind], c, row, o);
        int outcome = add_sum(s, c, row, o);
        if (outcome) return outcome;
    }
    return row->rows > 1 ? say_partial_decision(s, row, &w) : say_decision(s, row, &w);
}

static int charge_row(Charger *s, Entity *e, const Row *row) {
    const Shape *shape = shape_of(s, row->shape);
    if (!shape || row->amounts_n < shape->length || (!shape->has_mutations && row->amounts_n != shape->length)) return DECLINED;
    Outcome outcomes[MAX_CHARGES] = {{0}};
    if (row->timestamp_ms > e->last_event_ms) e->last_event_ms = row->timestamp_ms;
    s->refused.length = 0;
    for (uint32_t i = 0; i < shape->charges_n; i++) {
        const Charge *c = &shape->charges[i];
        Mutations mutations = {.e = e, .c = c, .o = &outcomes[i]};
        int outcome = c->family == F_MUTATIONS ? charge_mutations(s, &mutations, 1, row, c->first, topics_of(shape, row)) : charge_rate(s, e, shape, c, row, &outcomes[i]);
        if (outcome) return outcome;
    }
    return say_row(s, row, shape, outcomes);
}

static const Charger *sorted_rows; /* what `qsort` compares has no argument for it; a process decides in one thread */
static int by_offset(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const Row *x = AT(sorted_rows->rows, Row, i), *y = AT(sorted_rows->rows, Row, j);
    if (x->partition != y->partition) return x->partition < y->partition ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return i < j ? -1 : 1;
}
static int by_newest(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const Row *x = AT(sorted_rows->rows, Row, i), *y = AT(sorted_rows->rows, Row, j);
    if (x->newest_ms != y->newest_ms) return x->newest_ms < y->newest_ms ? -1 : 1;
    return by_offset(a, b);
}

/* The rows of a counter into `order`, as `pipeline.in_charge_order` has them. */
static int order_rows(Charger *s, const Entity *e) {
    s->order.length = 0;
    if (need(&s->order, e->rows_n * sizeof(uint32_t))) return NO_MEMORY;
    for (uint32_t row = e->first_row; row; row = AT(s->rows, Row, row - 1)->next) {
        uint32_t number = row - 1;
        put(&s->order, &number, sizeof number);
    }
    if (e->rows_n == 1) return DONE;
    sorted_rows = s;
    uint32_t *order = (uint32_t *)s->order.data;
    qsort(order, e->rows_n, sizeof *order, by_offset);
    for (uint32_t i = 0; i < e->rows_n; i++) {
        Row *row = AT(s->rows, Row, order[i]), *before = i ? AT(s->rows, Row, order[i - 1]) : NULL;
        row->newest_ms = row->timestamp_ms;
        if (before && before->partition == row->partition && before->newest_ms > row->newest_ms) row->newest_ms = before->newest_ms;
    }
    qsort(order, e->rows_n, sizeof *order, by_newest);
    return DONE;
}

static int end_counter(Charger *s, const Entity *e) { /* whose rows have all been charged */
    int outcome = say_sums(s, AT(s->rows, Row, e->first_row - 1)->entity);
    return outcome ? outcome : say_long_waits(s);
}

static int charge_entity(Charger *s, Entity *e) {
    int outcome = DONE;
    for (uint32_t i = 0; i < e->rates_n; i++) outcome |= !AT(s->rates, Rate, e->rates_at + i)->count; /* stored by one engine alone */
    if (!outcome) outcome = order_rows(s, e);
    for (uint32_t i = 0; i < e->rows_n && !outcome; i++) outcome = charge_row(s, e, AT(s->rows, Row, *AT(s->order, uint32_t, i)));
    return outcome ? outcome : end_counter(s, e);
}

/* ---- mutations of members of tenants: see `pipeline._mutations_of_tenants`. The mark ends the key of a tenant's counter
 * and stands in those of its members. */
static const uint8_t *mark_of(Bytes key) { return memchr(key.at, '>', key.n); }
static int is_tenant(Bytes key) { return key.at[key.n - 1] == '>'; }
static Bytes tenant_of(Bytes key) { return (Bytes){key.at, (uint32_t)(mark_of(key) - key.at) + 1}; }

static int compare_members(const Row *x, const Row *y) {
    if (x->partition != y->partition) return x->partition < y->partition ? -1 : 1;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    Bytes a = tenant_of(x->key), b = tenant_of(y->key);
    return a.n != b.n ? (a.n < b.n ? -1 : 1) : memcmp(a.at, b.at, a.n);
}
typedef struct { uint32_t row, entity; } Member;
static int by_request(const void *a, const void *b) {
    return compare_members(AT(sorted_rows->rows, Row, ((const Member *)a)->row), AT(sorted_rows->rows, Row, ((const Member *)b)->row));
}
static int by_outcome(const void *a, const void *b) {
    uint32_t x = AT(sorted_rows->rows, Row, *(const uint32_t *)a)->outcome, y = AT(sorted_rows->rows, Row, *(const uint32_t *)b)->outcome;
    return x < y ? -1 : x > y;
}

static int list_members(Charger *s) {
    s->members.length = 0;
    sorted_rows = s;
    for (uint32_t i = 0; i < LENGTH(s->touched, uint32_t); i++) {
        uint32_t number = *AT(s->touched, uint32_t, i);
        const Entity *e = AT(s->entities, Entity, number);
        if (!mark_of(e->key) || is_tenant(e->key)) continue;
        if (need(&s->members, e->rows_n * sizeof(Member))) return NO_MEMORY;
        for (uint32_t row = e->first_row; row; row = AT(s->rows, Row, row - 1)->next) put(&s->members, &(Member){row - 1, number}, sizeof(Member));
    }
    uint32_t n = LENGTH(s->members, Member);
    if (n) qsort(s->members.data, n, sizeof(Member), by_request);
    for (uint32_t i = 1; i < n; i++)
        if (!by_request(AT(s->members, Member, i - 1), AT(s->members, Member, i))) return DECLINED;
    return DONE;
}

static Member *member_of(const Charger *s, const Row *row) { /* of a tenant's row; NULL if it has none */
    uint32_t low = 0, high = LENGTH(s->members, Member);
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        Member *of = AT(s->members, Member, middle);
        int order = compare_members(AT(s->rows, Row, of->row), row);
        if (!order) return of;
        if (order < 0) low = middle + 1; else high = middle;
    }
    return NULL;
}

static int charge_request(Charger *s, Entity *tenant, Row *row, uint32_t *matched) {
    const Member *own = member_of(s, row);
    Row *rows[2] = {row, NULL};
    Entity *entities[2] = {tenant, NULL};
    Shape shapes[2];
    Mutations all[2] = {{0}};
    Outcome outcomes[2];
    uint32_t n = 1;
    if (own) {
        rows[0] = AT(s->rows, Row, own->row);
        entities[0] = AT(s->entities, Entity, own->entity);
        rows[1] = row;
        entities[1] = tenant;
        n = 2;
        ++*matched;
    }
    for (uint32_t i = 0; i < n; i++) {
        const Shape *shape = shape_of(s, rows[i]->shape);
        if (!shape || shape->charges_n != 1 || !shape->has_mutations || rows[i]->amounts_n != rows[0]->amounts_n || !rows[i]->amounts_n || rows[i]->outcome ||
            rows[i]->timestamp_ms != row->timestamp_ms) return DECLINED;
        shapes[i] = *shape; /* the next one may take its place */
        all[i] = (Mutations){.e = entities[i], .c = &shapes[i].charges[0], .o = &outcomes[i]};
    }
    int outcome = charge_mutations(s, all, n, rows[0], 0, rows[0]->amounts_n);
    if (!outcome && need(&s->outcomes, sizeof outcomes)) return NO_MEMORY;
    for (uint32_t i = 0; i < n && !outcome; i++) {
        put(&s->outcomes, &outcomes[i], sizeof(Outcome));
        rows[i]->outcome = LENGTH(s->outcomes, Outcome);
    }
    return outcome;
}

static int charge_tenants(Charger *s) {
    uint32_t touched = LENGTH(s->touched, uint32_t), matched = 0;
    int any = 0, outcome = DONE;
    for (uint32_t i = 0; i < touched; i++) any |= mark_of(AT(s->entities, Entity, *AT(s->touched, uint32_t, i))->key) != NULL;
    if (!any) return DONE;
    s->refused.length = s->outcomes.length = 0;
    outcome = list_members(s);
    for (uint32_t i = 0; i < touched && !outcome; i++) {
        Entity *e = AT(s->entities, Entity, *AT(s->touched, uint32_t, i));
        if (!mark_of(e->key) || !is_tenant(e->key)) continue;
        outcome = order_rows(s, e);
        for (uint32_t k = 0; k < e->rows_n && !outcome; k++) outcome = charge_request(s, e, AT(s->rows, Row, *AT(s->order, uint32_t, k)), &matched);
    }
    if (!outcome && matched != LENGTH(s->members, Member)) outcome = DECLINED;
    for (uint32_t i = 0; i < touched && !outcome; i++) {
        Entity *e = AT(s->entities, Entity, *AT(s->touched, uint32_t, i));
        if (!mark_of(e->key)) continue;
        outcome = order_rows(s, e);
        if (!outcome) qsort(s->order.data, e->rows_n, sizeof(uint32_t), by_outcome);
        for (uint32_t k = 0; k < e->rows_n && !outcome; k++) {
            const Row *row = AT(s->rows, Row, *AT(s->order, uint32_t, k));
            outcome = say_row(s, row, shape_of(s, row->shape), AT(s->outcomes, Outcome, row->outcome - 1));
        }
        if (!outcome) outcome = end_counter(s, e);
    }
    return outcome;
}

/* ---- stored pages: see `sluice.state.store.codec`, version 1 */
enum { LAST_EVENT, TOKENS, BUCKET_LAST, LIMIT, RATE_COUNT, RATE_KIND, RATE_CURRENT, SAMPLE_COUNT, SAMPLE_START, SAMPLE_LAST, SAMPLE_VALUE };
enum { HEAD = 21 };

static inline uint64_t little(const uint8_t *p, int bytes) {
    uint64_t v = 0;
    while (bytes--) v = v << 8 | p[bytes];
    return v;
}
typedef struct { const uint8_t *data; uint64_t base; int width, is_float; } Column;

static inline int64_t number_at(const Column *c, uint32_t i) {
    uint64_t v = c->base;
    if (c->width == 1) v += c->data[i];
    else if (c->width) v += little(c->data + (size_t)i * (size_t)c->width, c->width);
    return (int64_t)v;
}
static inline double double_at(const Column *c, uint32_t i) {
    if (!c->is_float) return (double)number_at(c, i);
    double d;
    uint64_t bits = little(c->data + 8 * (size_t)i, 8);
    memcpy(&d, &bits, 8);
    return d;
}
static int is_no_bucket(double tokens) { /* the NaN that Python writes; of others the engines keep or change the bits */
    uint64_t bits;
    memcpy(&bits, &tokens, 8);
    return bits == 0x7ff8000000000000ULL;
}
static int is_time(int64_t ms) { return ms >= 0 && ms <= MAX_TIMESTAMP_MS; }

static int read_columns(const uint8_t *at, const uint8_t *end, const uint32_t counts[3], Column *columns) {
    for (int i = 0; i < COLUMNS; i++) {
        Column *c = &columns[i];
        uint32_t count = counts[i <= RATE_COUNT ? 0 : i <= SAMPLE_COUNT ? 1 : 2];
        if (end - at < 9) return 0;
        c->is_float = *at == 'f' && (i == TOKENS || i == LIMIT || i == SAMPLE_VALUE);
        c->width = c->is_float ? 8 : *at - '0';
        c->base = little(at + 1, 8);
        c->data = at += 9;
        if (!c->is_float && c->width != 0 && c->width != 1 && c->width != 2 && c->width != 4 && c->width != 8) return 0;
        if ((uint64_t)(end - at) < (uint64_t)count * (uint64_t)c->width) return 0;
        at += (size_t)count * (size_t)c->width;
    }
    return at == end;
}

static int decode_rate(Charger *s, const Entity *e, const Column *columns, uint32_t rate, uint32_t samples, uint32_t *sample) {
    int64_t kind = number_at(&columns[RATE_KIND], rate), current = number_at(&columns[RATE_CURRENT], rate), count = number_at(&columns[SAMPLE_COUNT], rate);
    if (kind < 0 || kind >= s->kinds_n || !s->kinds[kind].n || count < 0 || count > MAX_SAMPLES || current < 0 || current >= (count ? count : 1) || count > samples - *sample) return DECLINED;
    for (uint32_t i = e->rates_at; i < LENGTH(s->rates, Rate); i++)
        if (AT(s->rates, Rate, i)->kind == kind) return DECLINED;
    if (need(&s->rates, sizeof(Rate)) || need(&s->samples, (size_t)count * sizeof(Sample))) return NO_MEMORY;
    put(&s->rates, &(Rate){LENGTH(s->samples, Sample), (uint32_t)count, (uint32_t)count, (uint32_t)current, (uint8_t)kind}, sizeof(Rate));
    for (int64_t i = 0; i < count; i++, ++*sample) {
        int64_t ago_ms = number_at(&columns[SAMPLE_START], *sample), lasted_ms = number_at(&columns[SAMPLE_LAST], *sample);
        double value = double_at(&columns[SAMPLE_VALUE], *sample);
        if (ago_ms < 0 || ago_ms > e->last_event_ms || lasted_ms < 0 || lasted_ms > ago_ms || !(fabs(value) < MAX_STORED)) return DECLINED;
        int64_t start_ms = e->last_event_ms - ago_ms;
        put(&s->samples, &(Sample){start_ms, start_ms + lasted_ms, value}, sizeof(Sample));
    }
    Rate *of = AT(s->rates, Rate, LENGTH(s->rates, Rate) - 1);
    Sample *stored = AT(s->samples, Sample, of->samples_at);
    for (int64_t i = 0; i < count; i++)
        if (stored[i].last_ms > stored[current].last_ms) return DECLINED;
    return DONE;
}

static int decode_page(Charger *s, const uint8_t *p, size_t n) {
    if (n < HEAD || p[0] != 1 || little(p + 1, 4) != (uint64_t)s->settings.pages) return DECLINED;
    uint32_t counts[3], names = (uint32_t)little(p + 17, 4);
    for (int i = 0; i < 3; i++) counts[i] = (uint32_t)little(p + 5 + 4 * i, 4);
    const uint8_t *end = p + n, *key = p + HEAD, *keys_end = key + names;
    if (names > n - HEAD || (counts[0] ? counts[0] - 1 > names : names) || counts[1] > (uint64_t)counts[0] * MAX_KINDS || counts[2] > MAX_SAMPLES_OF_PAGE) return DECLINED;
    int bad = 0;
    for (const uint8_t *at = key; at < keys_end; at++) bad |= (*at < 0x20 && *at != '\n') || *at > 0x7e;
    Column columns[COLUMNS];
    if (bad || !read_columns(keys_end, end, counts, columns)) return DECLINED;
    if (need(&s->entities, counts[0] * sizeof(Entity))) return NO_MEMORY;
    uint32_t rate = 0, sample = 0;
    for (uint32_t i = 0; i < counts[0]; i++) {
        const uint8_t *line_end = memchr(key, '\n', (size_t)(keys_end - key));
        if (!line_end != (i + 1 == counts[0])) return DECLINED;
        if (!line_end) line_end = keys_end;
        Entity e = {number_at(&columns[LAST_EVENT], i), number_at(&columns[BUCKET_LAST], i), double_at(&columns[TOKENS], i), double_at(&columns[LIMIT], i),
                    {key, (uint32_t)(line_end - key)}, LENGTH(s->rates, Rate), 0, 0, 0, 0};
        key = line_end + 1;
        if (!e.key.n || !is_time(e.last_event_ms) || !is_time(e.bucket_last_ms) || e.bucket_last_ms > e.last_event_ms || !(e.limit >= 0 && e.limit <= MAX_LIMIT) ||
            (isnan(e.tokens) ? e.bucket_last_ms != 0 || !is_no_bucket(e.tokens) : !(fabs(e.tokens) < MAX_STORED))) return DECLINED;
        int64_t own = number_at(&columns[RATE_COUNT], i);
        if (own < 0 || own > counts[1] - rate || own > MAX_KINDS) return DECLINED;
        for (; own; own--, e.rates_n++) {
            int outcome = decode_rate(s, &e, columns, rate++, counts[2], &sample);
            if (outcome) return outcome;
        }
        put(&s->entities, &e, sizeof e);
    }
    return rate == counts[1] && sample == counts[2] ? DONE : DECLINED;
}

static void write_column(Text *t, const double *reals, int64_t *numbers, size_t n) { /* needs 9 + 8 n bytes */
    if (!n) { put(t, "0\0\0\0\0\0\0\0\0", 9); return; }
    for (size_t i = 0; reals && i < n; i++) {
        double d = reals[i];
        if (!(fabs(d) < 9007199254740992.0) || trunc(d) != d || (signbit(d) && d == 0)) {
            put(t, "f\0\0\0\0\0\0\0\0", 9);
            for (size_t k = 0; k < n; k++) {
                uint64_t bits;
                memcpy(&bits, &reals[k], 8);
                for (int b = 0; b < 8; b++) put_byte(t, bits >> (8 * b) & 255);
            }
            return;
        }
        numbers[i] = (int64_t)d;
    }
    int64_t low = numbers[0], high = numbers[0];
    for (size_t i = 1; i < n; i++) {
        if (numbers[i] < low) low = numbers[i];
        if (numbers[i] > high) high = numbers[i];
    }
    uint64_t span = (uint64_t)high - (uint64_t)low;
    int width = span < 1 ? 0 : span < 256 ? 1 : span < 65536 ? 2 : span < 1ULL << 32 ? 4 : 8;
    put_byte(t, (unsigned)('0' + width));
    for (int b = 0; b < 8; b++) put_byte(t, (uint64_t)low >> (8 * b) & 255);
    for (size_t i = 0; i < n && width; i++) {
        uint64_t offset = (uint64_t)numbers[i] - (uint64_t)low;
        for (int b = 0; b < width; b++) put_byte(t, offset >> (8 * b) & 255);
    }
}

static const Charger *sorted_entities;
static int by_key(const void *a, const void *b) {
    Bytes x = AT(sorted_entities->entities, Entity, *(const uint32_t *)a)->key, y = AT(sorted_entities->entities, Entity, *(const uint32_t *)b)->key;
    int order = memcmp(x.at, y.at, x.n < y.n ? x.n : y.n);
    return order ? order : x.n < y.n ? -1 : x.n > y.n;
}

static double refilled(const Entity *e, int64_t now_ms) { return e->tokens + e->limit * ((double)(now_ms - e->bucket_last_ms) / 1000.0); }

static int is_at_rest(const Charger *s, const Entity *e, int64_t now_ms, int64_t idle_ms) {
    if (now_ms - e->last_event_ms <= idle_ms) return 0;
    return isnan(e->tokens) || refilled(e, now_ms) >= s->settings.burst * e->limit;
}

/* The counters that stay if a page has more than `max_entities`: see `Page.to_bytes`. */
typedef struct { int rank; int64_t last_event_ms; uint32_t place; } Loss;
static int by_loss(const void *a, const void *b) {
    const Loss *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->last_event_ms != y->last_event_ms) return x->last_event_ms < y->last_event_ms ? -1 : 1;
    return x->place < y->place ? -1 : 1;
}

static int evict(Charger *s, int64_t now_ms) {
    uint32_t n = LENGTH(s->kept, uint32_t), most = (uint32_t)s->settings.max_entities, left = 0;
    uint32_t *kept = (uint32_t *)s->kept.data;
    if (n <= most) return DONE;
    s->losses.length = 0;
    if (need(&s->losses, n * sizeof(Loss))) return NO_MEMORY;
    for (uint32_t k = 0; k < n; k++) {
        const Entity *e = AT(s->entities, Entity, kept[k]);
        int rank = is_at_rest(s, e, now_ms, s->settings.span_ms) ? 0 : refilled(e, now_ms) < 0 ? 2 : 1;
        put(&s->losses, &(Loss){rank, e->last_event_ms, k}, sizeof(Loss));
    }
    qsort(s->losses.data, n, sizeof(Loss), by_loss);
    for (uint32_t k = 0; k < n - most; k++) {
        const Loss *loss = AT(s->losses, Loss, k);
        s->evicted[loss->rank > 0]++;
        kept[loss->place] = UINT32_MAX;
    }
    for (uint32_t k = 0; k < n; k++)
        if (kept[k] != UINT32_MAX) kept[left++] = kept[k];
    s->kept.length = left * sizeof(uint32_t);
    return DONE;
}

/* The stored form of the page, whose first `stored` entities were there, without those at rest. */
static int encode_page(Charger *s, uint32_t stored) {
    uint32_t n = LENGTH(s->entities, Entity), rates = 0, samples = 0;
    size_t names = 0;
    int64_t now_ms = 0;
    for (uint32_t i = 0; i < n; i++) {
        const Entity *e = AT(s->entities, Entity, i);
        if (e->last_event_ms > now_ms) now_ms = e->last_event_ms;
    }
    s->kept.length = s->new_entities.length = 0;
    if (need(&s->kept, n * sizeof(uint32_t)) || need(&s->new_entities, n * sizeof(uint32_t))) return NO_MEMORY;
    for (uint32_t i = stored; i < n; i++) put(&s->new_entities, &i, sizeof i);
    sorted_entities = s;
    if (n > stored + 1) qsort(s->new_entities.data, n - stored, sizeof(uint32_t), by_key);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = k < stored ? k : *AT(s->new_entities, uint32_t, k - stored);
        if (!is_at_rest(s, AT(s->entities, Entity, i), now_ms, s->settings.idle_ms)) put(&s->kept, &i, sizeof i);
    }
    if (evict(s, now_ms)) return NO_MEMORY;
    uint32_t kept = LENGTH(s->kept, uint32_t);
    for (uint32_t k = 0; k < kept; k++) {
        const Entity *e = AT(s->entities, Entity, *AT(s->kept, uint32_t, k));
        names += e->key.n + 1;
        rates += e->rates_n;
        for (uint32_t r = 0; r < e->rates_n; r++) samples += AT(s->rates, Rate, e->rates_at + r)->count;
    }
    size_t most = kept > rates ? kept : rates;
    if (samples > most) most = samples;
    s->numbers.length = s->reals.length = 0;
    if (need(&s->numbers, most * 8) || need(&s->reals, most * 8)) return NO_MEMORY;
    Text *t = &s->stored;
    if (need(t, HEAD + names + COLUMNS * 9 + 8 * (5 * (size_t)kept + 3 * (size_t)rates + 3 * (size_t)samples))) return NO_MEMORY;
    int64_t *numbers = (int64_t *)s->numbers.data;
    double *reals = (double *)s->reals.data;
    uint32_t head[5] = {(uint32_t)s->settings.pages, kept, rates, samples, (uint32_t)(names ? names - 1 : 0)};
    put_byte(t, 1);
    for (int i = 0; i < 5; i++)
        for (int b = 0; b < 4; b++) put_byte(t, head[i] >> (8 * b) & 255);
#define ENTITIES for (uint32_t k = 0; k < kept; k++) for (const Entity *e = AT(s->entities, Entity, *AT(s->kept, uint32_t, k)); e; e = NULL)
#define RATES ENTITIES for (const Rate *rate = AT(s->rates, Rate, e->rates_at), *rates_end = rate + e->rates_n; rate < rates_end; rate++)
#define SAMPLES RATES for (const Sample *sample = AT(s->samples, Sample, rate->samples_at), *samples_end = sample + rate->count; sample < samples_end; sample++)
    ENTITIES { if (k) put_byte(t, '\n'); put_bytes(t, e->key); }
    ENTITIES numbers[k] = e->last_event_ms;
    write_column(t, NULL, numbers, kept);
    ENTITIES reals[k] = e->tokens;
    write_column(t, reals, numbers, kept);
    ENTITIES numbers[k] = e->bucket_last_ms;
    write_column(t, NULL, numbers, kept);
    ENTITIES reals[k] = e->limit;
    write_column(t, reals, numbers, kept);
    ENTITIES numbers[k] = e->rates_n;
    write_column(t, NULL, numbers, kept);
    size_t i = 0;
    RATES numbers[i++] = rate->kind;
    write_column(t, NULL, numbers, i);
    i = 0;
    RATES numbers[i++] = rate->current;
    write_column(t, NULL, numbers, i);
    i = 0;
    RATES numbers[i++] = rate->count;
    write_column(t, NULL, numbers, i);
    i = 0;
    SAMPLES numbers[i++] = e->last_event_ms - sample->start_ms;
    write_column(t, NULL, numbers, i);
    i = 0;
    SAMPLES numbers[i++] = sample->last_ms - sample->start_ms;
    write_column(t, NULL, numbers, i);
    i = 0;
    SAMPLES reals[i++] = sample->value;
    write_column(t, reals, numbers, i);
    return end_at(&s->stored_ends, t->length);
}

/* ---- pages */
static uint32_t *slot_of(Charger *s, Bytes key, size_t mask) { /* of its entity plus 1, or an empty one */
    size_t slot = hash_of(s->settings.seed, key.at, key.n) & mask;
    uint32_t *table = (uint32_t *)s->table.data;
    while (table[slot] && !same(AT(s->entities, Entity, table[slot] - 1)->key, key)) slot = (slot + 1) & mask;
    return &table[slot];
}

/* The rows of the page to their counters, new ones behind those that are stored. `touched` are those with rows. */
static int find_counters(Charger *s, const Page *page, uint32_t number) {
    uint32_t stored = LENGTH(s->entities, Entity), rows = page->end_row - page->first_row;
    size_t slots = 16;
    while (slots < 2 * ((size_t)stored + rows)) slots *= 2;
    s->table.length = s->touched.length = 0;
    if (need(&s->table, slots * sizeof(uint32_t)) || need(&s->touched, rows * sizeof(uint32_t)) || need(&s->entities, rows * sizeof(Entity))) return NO_MEMORY;
    memset(s->table.data, 0, slots * sizeof(uint32_t));
    for (uint32_t i = 0; i < stored; i++) {
        uint32_t *slot = slot_of(s, AT(s->entities, Entity, i)->key, slots - 1);
        if (*slot) return DECLINED; /* twice in the page */
        *slot = i + 1;
    }
    for (uint32_t i = page->first_row; i < page->end_row; i++) {
        Row *row = AT(s->rows, Row, i);
        uint32_t *slot = slot_of(s, row->key, slots - 1);
        if (!*slot) {
            const uint8_t *mark = mark_of(row->key);
            if (crc32_of(row->key.at, mark ? (size_t)(mark - row->key.at) : row->key.n) % (uint32_t)s->settings.pages != number) return DECLINED;
            put(&s->entities, &(Entity){0, 0, NAN, UNLIMITED, row->key, LENGTH(s->rates, Rate), 0, 0, 0, 0}, sizeof(Entity));
            *slot = LENGTH(s->entities, Entity);
        }
        uint32_t of = *slot - 1;
        Entity *e = AT(s->entities, Entity, of);
        if (e->first_row) {
            if (!same(AT(s->rows, Row, e->first_row - 1)->entity, row->entity)) return DECLINED;
            AT(s->rows, Row, e->last_row - 1)->next = i + 1;
        } else {
            e->first_row = i + 1;
            put(&s->touched, &of, sizeof of);
        }
        e->last_row = i + 1;
        e->rows_n++;
    }
    return DONE;
}

static int decide_page(Charger *s, const Page *page, uint32_t number, const uint8_t *payload, size_t n) {
    s->entities.length = s->rates.length = s->samples.length = 0;
    int outcome = payload ? decode_page(s, payload, n) : DONE;
    uint32_t stored = LENGTH(s->entities, Entity);
    for (uint32_t i = page->first_record; i < page->end_record && !outcome; i++) {
        const Record *record = AT(s->records, Record, i);
        outcome = add_record(s, record->topic, record->key, record->value);
    }
    if (!outcome) outcome = find_counters(s, page, number);
    for (uint32_t i = 0; i < LENGTH(s->touched, uint32_t) && !outcome; i++) {
        Entity *e = AT(s->entities, Entity, *AT(s->touched, uint32_t, i));
        if (!mark_of(e->key)) outcome = charge_entity(s, e);
    }
    if (!outcome) outcome = charge_tenants(s);
    return outcome ? outcome : encode_page(s, stored);
}

/* All texts to which a page adds, with their lengths before it. */
enum { MAX_MARKED = 5 * MAX_TOPICS + GROUPS + 5 };
static int outputs_of(Charger *s, Text **texts) {
    int n = 0;
    for (int i = 0; i < MAX_TOPICS; i++) {
        Keyed *k = &s->keyed[i];
        texts[n++] = &k->values; texts[n++] = &k->value_ends; texts[n++] = &k->keys; texts[n++] = &k->key_ends; texts[n++] = &k->has_key;
    }
    for (int i = 0; i < GROUPS; i++) texts[n++] = &s->partial[i];
    texts[n++] = &s->sums_text; texts[n++] = &s->sum_ends; texts[n++] = &s->stored; texts[n++] = &s->stored_ends; texts[n++] = &s->waits;
    return n;
}

static void forget_outputs(Charger *s) { /* of the last call */
    Text *texts[MAX_MARKED];
    int texts_n = outputs_of(s, texts);
    for (int i = 0; i < texts_n; i++) texts[i]->length = 0;
}

static int decide_or_forget(Charger *s, Page *page, uint32_t number, const uint8_t *payload, size_t n) {
    Text *texts[MAX_MARKED];
    size_t lengths[MAX_MARKED];
    uint32_t partial_n[GROUPS], evicted[2] = {s->evicted[0], s->evicted[1]}, waits_n = s->waits_n, gateways_n = LENGTH(s->gateways, Gateway);
    int texts_n = outputs_of(s, texts);
    for (int i = 0; i < texts_n; i++) lengths[i] = texts[i]->length;
    memcpy(partial_n, s->partial_n, sizeof partial_n);
    s->gateways_before.length = 0;
    if (need(&s->gateways_before, s->gateways.length)) return NO_MEMORY;
    put(&s->gateways_before, s->gateways.data, s->gateways.length);
    int outcome = decide_page(s, page, number, payload, n);
    if (outcome != DECLINED) return outcome;
    page->declined = 1;
    for (int i = 0; i < texts_n; i++) texts[i]->length = lengths[i];
    memcpy(s->partial_n, partial_n, sizeof partial_n);
    s->waits_n = waits_n;
    memcpy(s->evicted, evicted, sizeof evicted);
    forget_gateways(s, gateways_n);
    if (gateways_n) memcpy(s->gateways.data, s->gateways_before.data, s->gateways.length);
    for (int kind = 0; kind < MAX_KINDS; kind++) s->of_kind[kind].used = s->notes[kind].used = 0;
    return end_at(&s->stored_ends, s->stored.length);
}

/* ---- for Python */
API void decide_free(Charger *s) {
    if (!s) return;
    Text *outputs[MAX_MARKED];
    int n = outputs_of(s, outputs);
    for (int i = 0; i < n; i++) free(outputs[i]->data);
    Text *texts[] = {&s->rows, &s->records, &s->pages, &s->batches, &s->entities, &s->rates, &s->samples, &s->table, &s->new_entities, &s->touched, &s->kept, &s->losses,
                     &s->numbers, &s->reals, &s->charges, &s->refused, &s->order, &s->members, &s->outcomes, &s->partial_read, &s->gateways, &s->gateways_before};
    for (size_t i = 0; i < COUNT(texts); i++) free(texts[i]->data);
    for (int i = 0; i < MAX_TOPICS; i++) free(s->topics[i].data);
    for (int i = 0; i < MAX_KINDS; i++) free(s->of_kind[i].uses.data);
    free(s);
}

API Charger *decide_new(const Settings *settings) {
    make_crc_table();
    Charger *s = calloc(1, sizeof *s);
    if (s) s->settings = *settings;
    return s;
}

/* The next kind, in the order of their codes; `family` 0: nothing is charged to it. */
API int decide_kind(Charger *s, const uint8_t *name, size_t n, int family, int place, int consumer) {
    if (s->kinds_n == MAX_KINDS || n >= MAX_NAME) return NO_MEMORY;
    Kind *kind = &s->kinds[s->kinds_n++];
    memcpy(kind->name, name, n);
    kind->n = (uint8_t)n;
    kind->family = (uint8_t)family;
    kind->place = (uint8_t)place;
    kind->consumer = (uint8_t)consumer;
    return DONE;
}

/* The next topic of records: no two are the same. */
API int decide_topic(Charger *s, const uint8_t *name, size_t n, int is_decisions, int is_sums) {
    if (s->topics_n == MAX_TOPICS || need(&s->topics[s->topics_n], n)) return NO_MEMORY;
    put(&s->topics[s->topics_n], name, n);
    if (is_decisions) s->decisions = s->topics_n;
    if (is_sums) s->sums = s->topics_n;
    s->topics_n++;
    return DONE;
}

/* Decides pages `numbers`, whose page batches come one after another, `batches_of` each. `declined` says of each page
 * whether Python has to. A page that is declined has left nothing. */
API int decide_pages(Charger *s, uint32_t pages_n, const int32_t *numbers, const uint8_t *const *payloads, const uint64_t *lengths, const uint32_t *batches_of,
                     const uint8_t *const *batches, const uint64_t *batch_lengths, uint8_t *declined) {
    int outcome = DONE;
    forget_outputs(s);
    s->rows.length = s->records.length = s->pages.length = 0;
    s->waits_n = s->evicted[0] = s->evicted[1] = 0;
    memset(s->partial_n, 0, sizeof s->partial_n);
    memset(s->gateway_slots, 0, sizeof s->gateway_slots);
    s->gateways.length = 0;
    for (int kind = 0; kind < MAX_KINDS; kind++) s->of_kind[kind].used = s->notes[kind].used = 0;
    for (int i = 0; i < SHAPES; i++) s->shapes[i].encoded.at = NULL; /* its bytes were those of the last call */
    s->base_ms = MAX_TIMESTAMP_MS;
    if (need(&s->pages, pages_n * sizeof(Page))) return NO_MEMORY;
    for (uint32_t i = 0; i < pages_n; i++) {
        Page page = {LENGTH(s->rows, Row), 0, LENGTH(s->records, Record), 0, 0};
        for (uint32_t k = 0; k < batches_of[i]; k++, batches++, batch_lengths++)
            if (!page.declined && (outcome = read_batch(s, *batches, (size_t)*batch_lengths)) == NO_MEMORY) return NO_MEMORY;
            else page.declined |= outcome;
        if (page.declined) {
            s->rows.length = page.first_row * sizeof(Row);
            s->records.length = page.first_record * sizeof(Record);
        }
        page.end_row = LENGTH(s->rows, Row);
        page.end_record = LENGTH(s->records, Record);
        for (uint32_t k = page.first_row; k < page.end_row; k++)
            if (AT(s->rows, Row, k)->timestamp_ms < s->base_ms) s->base_ms = AT(s->rows, Row, k)->timestamp_ms;
        put(&s->pages, &page, sizeof page);
    }
    for (uint32_t i = 0; i < pages_n; i++) {
        Page *page = AT(s->pages, Page, i);
        outcome = page->declined ? end_at(&s->stored_ends, s->stored.length) : decide_or_forget(s, page, (uint32_t)numbers[i], payloads[i], (size_t)lengths[i]);
        if (outcome) return NO_MEMORY;
        declined[i] = (uint8_t)page->declined;
    }
    return DONE;
}

/* Makes the decisions of some lists of partial ones, all of each request. If they are DECLINED, Python has to. */
API int combine_partial_decisions(Charger *s, uint32_t lists_n, const uint8_t *const *lists, const uint64_t *lengths) {
    forget_outputs(s);
    s->partial_read.length = s->refused.length = 0;
    for (uint32_t i = 0; i < lists_n; i++) {
        Reader reader = {lists[i], lists[i] + lengths[i], 0};
        for (uint64_t n = read_list(&reader); n; n--) {
            PartialDecision partial;
            int outcome = read_partial_decision(s, &reader, &partial);
            if (outcome) return outcome;
            if (need(&s->partial_read, sizeof partial)) return NO_MEMORY;
            put(&s->partial_read, &partial, sizeof partial);
        }
        if (reader.failed || reader.p != reader.end) return DECLINED;
    }
    PartialDecision *first = (PartialDecision *)s->partial_read.data, *end = first + LENGTH(s->partial_read, PartialDecision);
    if (first < end) qsort(first, (size_t)(end - first), sizeof *first, by_request_and_row);
    for (PartialDecision *next; first < end; first = next) {
        for (next = first + 1; next < end && next->row.partition == first->row.partition && next->row.offset == first->row.offset;) next++;
        int outcome = say_request(s, first, next);
        if (outcome) return outcome;
    }
    return DONE;
}

API int64_t decide_base_ms(const Charger *s) { return s->base_ms; }

/* An output of the last call, and its bytes in `size`; NULL if there is none of this number. Outputs: 0 to 4 those of
 * topic `of` (values, their ends, keys, their ends, flags of keys), 5 sums, 6 their ends, 7 pages, 8 their ends, 9 waits. */
API const uint8_t *decide_output(Charger *s, int output, int of, uint64_t *size) {
    if (of < 0 || of >= MAX_TOPICS) return NULL;
    Keyed *k = &s->keyed[of];
    Text *texts[] = {&k->values, &k->value_ends, &k->keys, &k->key_ends, &k->has_key, &s->sums_text, &s->sum_ends, &s->stored, &s->stored_ends, &s->waits};
    if (output < 0 || (size_t)output >= COUNT(texts)) return NULL;
    *size = texts[output]->length;
    return texts[output]->data;
}

/* The list of the partial decisions of a group, in msgpack; of no bytes if there is none. */
API const uint8_t *decide_partial_decisions(Charger *s, int group, uint64_t *size) {
    Text *t = &s->partial[group];
    if (t->length) {
        Text length = {t->data, 1, t->room};
        big_endian(&length, s->partial_n[group], 4);
    }
    *size = t->length;
    return t->data;
}

API uint32_t decide_waits(const Charger *s) { return s->waits_n; }

/* Counters that were forgotten as their page had more than `max_entities`: those at rest (0), and others (1). */
API uint32_t decide_evicted(const Charger *s, int is_owing) { return s->evicted[is_owing != 0]; }

/* A gateway of the sums, by its place; NULL if there is none. */
API const uint8_t *decide_gateway(const Charger *s, uint32_t place, uint64_t *size, int64_t *until_ms) {
    if (place >= LENGTH(s->gateways, Gateway)) return NULL;
    const Gateway *of = AT(s->gateways, Gateway, place);
    *size = of->text.n;
    *until_ms = of->until_ms;
    return of->text.at;
}
