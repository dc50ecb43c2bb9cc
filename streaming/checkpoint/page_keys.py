"""Spark's state keys of the pages, chosen so that every task gets the same number of pages.

Spark stores a key in the state partition `hash(key) mod partitions`. With the keys 0, 1, 2, ... one of two tasks had 20
of 32 pages, and the other one waited for it. Spark's hash of an int (Murmur3, 32 bits) is a bijection. So each page
gets the key whose hash is the number of the page: the pages are dealt to the partitions one by one, for any number of
partitions.

A checkpoint begins with `first_pages`. Once there are more than 256 entities for each page, the next micro-batch
doubles the number of pages, once or several times (`origin.grown_pages`): it reads every page, and spreads its entities
over those that it becomes (`state.store.pages.reshard`). Page p + k * first_pages is split off page p, so one task has
to have both: its hash is p + k * `_SPLIT_STRIDE`, and the stride is a multiple of most numbers of partitions.

The inverse undoes the steps of the hash in reverse order. All arithmetic is modulo 2^32: multiplying by an odd factor
is undone by its modular inverse, a rotation by the opposite rotation, and `x ^ (x >> n)` by recovering n bits at a time
from the top.
"""

from functools import cache

_SPLIT_STRIDE = 86_486_400
"""A multiple of all numbers to 16, and of 18, 20, 24, 28, 30, 32, 36, 40, 48 and 64, far above the number of pages."""

_SEED = 42  # Spark's constant for hash partitioning
_INT_BYTES = 4
_MASK = 0xFFFFFFFF
_KEY_FACTORS = (0xCC9E2D51, 0x1B873593)
_KEY_ROTATION = 15
_STATE_ROTATION, _STATE_FACTOR, _STATE_ADDEND = 13, 5, 0xE6546B64
_MIX_FACTORS = (0x85EBCA6B, 0xC2B2AE35)
_MIX_SHIFTS = (16, 13, 16)


@cache
def page_of_spark_key(key: int, first_pages: int) -> int:
    """The page stored under this key, in a checkpoint that began with `first_pages`.

    >>> page_of_spark_key(405075492, 256), page_of_spark_key(spark_key_of_page(263, 256), 256)
    (7, 263)
    """
    turn, page = divmod(_spark_hash(key), _SPLIT_STRIDE)
    return page + turn * first_pages


@cache
def spark_key_of_page(page: int, first_pages: int) -> int:
    """The key of a page, a signed int of 32 bits, in a checkpoint that began with `first_pages`.

    >>> spark_key_of_page(7, 256)
    405075492
    """
    turn, own = divmod(page, first_pages)
    return _key_of_hash(own + turn * _SPLIT_STRIDE)


def can_split(partitions: int) -> bool:
    """True if one of so many shuffle partitions has all pages that a page is split into.

    >>> can_split(16), can_split(17)
    (True, False)
    """
    return _SPLIT_STRIDE % partitions == 0


def _spark_hash(key: int) -> int:
    mixed = _product(_rotated(_product(key, _KEY_FACTORS[0]), _KEY_ROTATION), _KEY_FACTORS[1])
    state = _product(_rotated(mixed ^ _SEED, _STATE_ROTATION), _STATE_FACTOR) + _STATE_ADDEND
    state = _xor_shifted((state & _MASK) ^ _INT_BYTES, _MIX_SHIFTS[0])
    state = _xor_shifted(_product(state, _MIX_FACTORS[0]), _MIX_SHIFTS[1])
    return _xor_shifted(_product(state, _MIX_FACTORS[1]), _MIX_SHIFTS[2])


def _key_of_hash(number: int) -> int:
    state = _product(_xor_unshifted(number, _MIX_SHIFTS[2]), _inverse(_MIX_FACTORS[1]))
    state = _product(_xor_unshifted(state, _MIX_SHIFTS[1]), _inverse(_MIX_FACTORS[0]))
    state = _xor_unshifted(state, _MIX_SHIFTS[0]) ^ _INT_BYTES
    state = _rotated(_product(state - _STATE_ADDEND, _inverse(_STATE_FACTOR)), 32 - _STATE_ROTATION)
    mixed = _rotated(_product(state ^ _SEED, _inverse(_KEY_FACTORS[1])), 32 - _KEY_ROTATION)
    key = _product(mixed, _inverse(_KEY_FACTORS[0]))
    return key - (1 << 32) if key >> 31 else key


def _product(first: int, second: int) -> int:
    return first * second & _MASK


def _inverse(factor: int) -> int:
    """The modular inverse of an odd factor: their product is 1 modulo 2^32."""
    return pow(factor, -1, 1 << 32)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


def _xor_shifted(word: int, bits: int) -> int:
    return word ^ word >> bits


def _xor_unshifted(word: int, bits: int) -> int:
    """The inverse of `_xor_shifted`: the top `bits` bits are unchanged, and each block of bits gives the next one."""
    found = word
    for _ in range(32 // bits):
        found = word ^ found >> bits
    return found
