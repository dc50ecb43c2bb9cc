"""The keys of the shards in Spark's state: chosen so that every task gets as many shards as the next.

Spark puts a key into the state partition `hash(key) mod partitions`. With the keys 0, 1, 2 and so on, one of two tasks
had 20 of 32 shards and the other waited for it. Spark's hash of an int (Murmur3) gives each int another one, so every
shard has a key whose hash is just the shard's number, and the shards take turns, however many partitions there are.
"""

from functools import cache

_SEED = 42  # of Spark's hash partitioning
_INT_BYTES = 4
_MASK = 0xFFFFFFFF
_KEY_FACTORS = (0xCC9E2D51, 0x1B873593)
_KEY_ROTATION = 15
_STATE_ROTATION, _STATE_FACTOR, _STATE_ADDEND = 13, 5, 0xE6546B64
_MIX_FACTORS = (0x85EBCA6B, 0xC2B2AE35)
_MIX_SHIFTS = (16, 13, 16)


def shard_at(key: int) -> int:
    """The shard with this key: Spark's `hash(key)`.

    >>> shard_at(405075492)
    7
    """
    mixed = _product(_rotated(_product(key, _KEY_FACTORS[0]), _KEY_ROTATION), _KEY_FACTORS[1])
    state = _product(_rotated(mixed ^ _SEED, _STATE_ROTATION), _STATE_FACTOR) + _STATE_ADDEND
    state = _xor_shifted((state & _MASK) ^ _INT_BYTES, _MIX_SHIFTS[0])
    state = _xor_shifted(_product(state, _MIX_FACTORS[0]), _MIX_SHIFTS[1])
    return _xor_shifted(_product(state, _MIX_FACTORS[1]), _MIX_SHIFTS[2])


@cache
def key_of(shard: int) -> int:
    """The key of a shard, an int of 32 bits: every step of the hash undone, the last one first.

    >>> key_of(7)
    405075492
    """
    state = _product(_xor_unshifted(shard, _MIX_SHIFTS[2]), _inverse(_MIX_FACTORS[1]))
    state = _product(_xor_unshifted(state, _MIX_SHIFTS[1]), _inverse(_MIX_FACTORS[0]))
    state = _xor_unshifted(state, _MIX_SHIFTS[0]) ^ _INT_BYTES
    state = _rotated(_product(state - _STATE_ADDEND, _inverse(_STATE_FACTOR)), 32 - _STATE_ROTATION)
    mixed = _rotated(_product(state ^ _SEED, _inverse(_KEY_FACTORS[1])), 32 - _KEY_ROTATION)
    key = _product(mixed, _inverse(_KEY_FACTORS[0]))
    return key - (1 << 32) if key >> 31 else key


def _product(first: int, second: int) -> int:
    return first * second & _MASK


def _inverse(factor: int) -> int:
    """What takes the factor back: their product is 1."""
    return pow(factor, -1, 1 << 32)


def _rotated(word: int, bits: int) -> int:
    """The word's bits moved to the left, and in again on the right."""
    return (word << bits | word >> 32 - bits) & _MASK


def _xor_shifted(word: int, bits: int) -> int:
    return word ^ word >> bits


def _xor_unshifted(word: int, bits: int) -> int:
    """The word that `_xor_shifted` made this one of: its first bits are unchanged, and give the next ones."""
    found = word
    for _ in range(32 // bits):
        found = word ^ found >> bits
    return found
