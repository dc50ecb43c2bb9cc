/* What the native code shares: texts that grow, msgpack, hashes. C11 without Python's headers. */
#ifndef SLUICE_TEXT_H
#define SLUICE_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif

/* The number of the interface of C and Python, which Python has as `library.ABI`. */
enum { ABI = 3 };

/* What becomes of an event or a page. */
enum { DONE = 0, DECLINED = 1, NO_MEMORY = -1 };

/* ---- texts that grow */
typedef struct { uint8_t *data; size_t length, room; } Text; /* or an array */

static int grow(Text *t, size_t more) {
    size_t room = t->room ? t->room : 256;
    while (room < t->length + more) room *= 2;
    uint8_t *data = realloc(t->data, room);
    if (!data) return NO_MEMORY;
    t->data = data;
    t->room = room;
    return 0;
}
static inline int need(Text *t, size_t more) { return t->length + more > t->room ? grow(t, more) : 0; }
/* These write where `need` has made room. */
static inline void put(Text *t, const void *from, size_t n) {
    if (n) memcpy(t->data + t->length, from, n);
    t->length += n;
}
static inline void put_byte(Text *t, unsigned byte) { t->data[t->length++] = (uint8_t)byte; }
#define PUT(t, literal) put((t), (literal), sizeof(literal) - 1)
static inline void put_number(Text *t, uint64_t v) {
    char digits[20];
    int n = 20;
    do { digits[--n] = (char)('0' + v % 10); v /= 10; } while (v);
    put(t, digits + n, 20 - (size_t)n);
}

/* ---- msgpack */
static inline void big_endian(Text *t, uint64_t v, int bytes) { while (bytes--) put_byte(t, (unsigned)(v >> (8 * bytes)) & 255); }
static inline void pack_number(Text *t, uint64_t v) {
    if (v < 128) put_byte(t, (unsigned)v);
    else if (v < 256) { put_byte(t, 0xcc); big_endian(t, v, 1); }
    else if (v < 65536) { put_byte(t, 0xcd); big_endian(t, v, 2); }
    else if (v <= 0xffffffffULL) { put_byte(t, 0xce); big_endian(t, v, 4); }
    else { put_byte(t, 0xcf); big_endian(t, v, 8); }
}
static inline void pack_bin_head(Text *t, size_t n) {
    if (n < 256) { put_byte(t, 0xc4); big_endian(t, n, 1); }
    else if (n < 65536) { put_byte(t, 0xc5); big_endian(t, n, 2); }
    else { put_byte(t, 0xc6); big_endian(t, n, 4); }
}
static inline void pack_bin(Text *t, const void *from, size_t n) { pack_bin_head(t, n); put(t, from, n); }
static inline void pack_str(Text *t, const void *from, size_t n) {
    if (n < 32) put_byte(t, 0xa0 | (unsigned)n);
    else if (n < 256) { put_byte(t, 0xd9); big_endian(t, n, 1); }
    else { put_byte(t, 0xda); big_endian(t, n, 2); }
    put(t, from, n);
}
static inline void pack_list_head(Text *t, size_t n) {
    if (n < 16) put_byte(t, 0x90 | (unsigned)n);
    else if (n < 65536) { put_byte(t, 0xdc); big_endian(t, n, 2); }
    else { put_byte(t, 0xdd); big_endian(t, n, 4); }
}
static inline void pack_double(Text *t, double d) {
    uint64_t v;
    memcpy(&v, &d, 8);
    put_byte(t, 0xcb);
    big_endian(t, v, 8);
}

/* Bytes of the UTF-8 character at p, which isn't ASCII; 0 if it is none. */
static int utf8(const uint8_t *p) {
    uint8_t c = p[0];
    if (c < 0xc2) return 0;
    if (p[1] < 0x80 || p[1] > 0xbf) return 0;
    if (c < 0xe0) return 2;
    if (p[2] < 0x80 || p[2] > 0xbf) return 0;
    if (c < 0xf0) return (c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) ? 0 : 3;
    if (p[3] < 0x80 || p[3] > 0xbf || c > 0xf4) return 0;
    return (c == 0xf0 && p[1] < 0x90) || (c == 0xf4 && p[1] > 0x8f) ? 0 : 4;
}

/* ---- SipHash-1-3 (Aumasson and Bernstein, 2012). `seed` is random: clients choose their names, and would choose those
 * that collide, as they can under a hash that multiplies. */
static inline uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1]; v[1] = rotated(v[1], 13) ^ v[0]; v[0] = rotated(v[0], 32);
    v[2] += v[3]; v[3] = rotated(v[3], 16) ^ v[2];
    v[0] += v[3]; v[3] = rotated(v[3], 21) ^ v[0];
    v[2] += v[1]; v[1] = rotated(v[1], 17) ^ v[2]; v[2] = rotated(v[2], 32);
}
static inline void sip_take(uint64_t v[4], uint64_t block) {
    v[3] ^= block;
    sip_round(v);
    v[0] ^= block;
}
static uint64_t hash_of(uint64_t seed, const uint8_t *p, size_t n) {
    uint64_t key = seed * 0x9e3779b97f4a7c15ULL, block, last = (uint64_t)n << 56;
    uint64_t v[4] = {seed ^ 0x736f6d6570736575ULL, key ^ 0x646f72616e646f6dULL, seed ^ 0x6c7967656e657261ULL, key ^ 0x7465646279746573ULL};
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&block, p, 8);
        sip_take(v, block);
    }
    block = 0;
    if (n) memcpy(&block, p, n);
    sip_take(v, last | block);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- CRC-32, as zlib has it */
static uint32_t crc_table[256];

static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        crc_table[i] = c;
    }
}

static uint32_t crc32_of(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    while (n--) c = crc_table[(c ^ *p++) & 255] ^ c >> 8;
    return ~c;
}

#endif
