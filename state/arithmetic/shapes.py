"""The shape of a row: the charges that its amounts are for, which most rows have in common.

A row is a request on one counter. It carries its amounts in one list, in the order of its charges, and its shape as
bytes, so that rows of one shape are known by these.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from sluice.state.arithmetic.counter import Charge
from sluice.state.quotas.kinds import Family, QuotaKind

_AMOUNTS = {Family.REQUEST_TIME: 2}
"""Number of amounts of a charge, if not one. One of mutations has as many as topics: the rest, as no row has two."""

_MAX_SHAPES = 1 << 16
"""Most shapes that are kept decoded: about a kilobyte each."""

_MAX_SHARED = 1 << 12
"""Most shapes whose bytes are shared: with a limit of its own, a client shares them with nobody."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Charge])


class Charged(Protocol):
    """A request with its amounts on one counter: none of them resets the counter."""

    @property
    def timestamp_ms(self) -> int:
        """The time of the request."""

    @property
    def shape(self) -> bytes:
        """The charges on the counter, as of `encode_shape`."""

    @property
    def amounts(self) -> list[float]:
        """The amounts of all charges, in order."""


class Shape(msgspec.Struct, frozen=True, gc=False):
    """The charges of a row, without amounts, and the place of each among the row's amounts."""

    charges: tuple[Charge, ...]
    places: tuple[slice, ...]

    @classmethod
    def of(cls, charges: Sequence[Charge]) -> "Shape":
        """The shape of a row with these charges."""
        widths = [_AMOUNTS.get(charge.kind.family, 1) for charge in charges]
        places, first, after_mutations = [], 0, False
        for charge, width in zip(charges, widths, strict=True):
            is_mutations = charge.kind.family is Family.MUTATIONS
            first_of = first - sum(widths) if after_mutations else first
            last = first + width - sum(widths) if after_mutations or is_mutations else first + width
            places.append(slice(first_of, last or None))
            first, after_mutations = first + width, after_mutations or is_mutations
        return cls(tuple(charges), tuple(places))

    def charges_of(self, amounts: list[float]) -> list[Charge]:
        """The charges with the amounts of a row."""
        return [
            Charge(one.kind, one.level, one.limit, one.shadow, amounts[place], one.strict, one.withheld)
            for one, place in zip(self.charges, self.places, strict=True)
        ]


class Shapes(dict[bytes, Shape]):
    """The shapes of some rows by their bytes."""

    def __missing__(self, encoded: bytes) -> Shape:
        """Decode a shape that is new here."""
        shape = self[encoded] = _decoded(encoded)
        return shape


@lru_cache(maxsize=_MAX_SHAPES)
def _decoded(encoded: bytes) -> Shape:
    """The shape; each client may have a limit of its own, and so a shape, and comes again."""
    return Shape.of(_DECODER.decode(encoded))


def encode_shape(charges: Sequence[Charge]) -> bytes:
    """The shape of these charges as bytes, whatever their amounts.

    >>> from sluice.state.quotas.kinds import QuotaKind
    >>> charge = Charge(QuotaKind.PRODUCER_BYTE_RATE, "user", 5.0, False, [70.0])
    >>> Shapes()[encode_shape([charge])].charges_of([80.0])[0].amounts
    [80.0]
    """
    return _encoded(tuple((one.kind, one.level, one.limit, one.shadow, one.strict, one.withheld) for one in charges))


@lru_cache(maxsize=_MAX_SHARED)
def _encoded(charges: tuple[tuple[QuotaKind, str, float | None, bool, bool, bool], ...]) -> bytes:
    """The same bytes for all clients with this shape: they take an eighth of a plan otherwise.

    A limit is a float in them, as 5 and 5.0 are one key here.
    """
    bare = [
        Charge(kind, level, None if limit is None else float(limit), shadow, [], *flags)
        for kind, level, limit, shadow, *flags in charges
    ]
    return _ENCODER.encode(bare)
