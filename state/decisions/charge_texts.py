"""The charges of decisions as JSON: columns of numbers become text at once, and texts are joined."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from sluice.state.arithmetic.counter import Charge
from sluice.state.arithmetic.outcomes import Outcomes, Violation
from sluice.state.arithmetic.shapes import Charged, Shape, Shapes
from sluice.state.decisions.decision import Waits, clamp_throttle_ms
from sluice.state.quotas.kinds import Family, QuotaKind
from sluice.state.quotas.name_cache import ENTRY_BYTES, NameCache

_ENCODER = msgspec.json.Encoder()
_ALLOWED = b',"throttle_ms":0,"violated":false'
_MAX_CACHED_BYTES = 64 * 1024 * 1024
"""Bytes of the parts that are kept: each client may have a limit of its own."""

_CHUNK = 2048
"""Numbers made text at once: more don't fit in the CPU cache."""


class EntityCharged(Charged, Protocol):
    """A row that says its counter's entity."""

    @property
    def entity(self) -> bytes:
        """The entity as JSON, as of `sluice.state.quotas.entity.entity_text`."""


class _Around(NamedTuple):
    """The parts of a charge's JSON that all rows of a shape share: before its entity, after it, and its end."""

    before: bytes
    after: bytes
    end: bytes

    @classmethod
    def of(cls, charge: Charge) -> "_Around":
        """The parts of this charge."""
        return cls(
            b'{"quota":%b,"entity":' % _ENCODER.encode(charge.kind),
            b',"matched":%b,"limit":%b,"value":' % (_ENCODER.encode(charge.level), _ENCODER.encode(charge.limit)),
            b',"mode":"shadow"}' if charge.shadow else b"}",
        )


def charge_texts(
    rows: Sequence[EntityCharged],
    outcomes: Mapping[QuotaKind, Outcomes],
    values: Mapping[QuotaKind, Sequence[bytes]],
    shapes: Shapes,
) -> Iterable[bytes]:
    """The charges of each row as JSON, in the order of its shape, with commas between them.

    `values` are those of the outcomes as JSON.
    """
    texts = {kind: _texts(kind, rows, of_kind, values[kind], shapes) for kind, of_kind in outcomes.items()}
    if len(texts) == 1:
        (only,) = texts.values()
        return only
    return _joined(rows, {kind: iter(of_kind) for kind, of_kind in texts.items()}, shapes)


def waits_of(rows: Sequence[Charged], outcomes: Mapping[QuotaKind, Outcomes], shapes: Shapes) -> dict[int, Waits]:
    """The waits of those rows that have any, by position."""
    waits: dict[int, Waits] = {}
    for kind, of_kind in outcomes.items():
        for position in of_kind.violations.keys() | of_kind.samples.keys():
            row = of_kind.rows[position]
            charge = charge_of(shapes[rows[row].shape], kind)
            violation = of_kind.violations.get(position, _NONE)
            waits.setdefault(row, Waits()).add(
                charge, violation.wait_ms, violation.refused, of_kind.samples.get(position)
            )
    return waits


def charge_of(shape: Shape, kind: QuotaKind) -> Charge:
    """The charge of this kind in a shape that has one."""
    return next(charge for charge in shape.charges if charge.kind is kind)


_NONE = Violation(0)
_AROUND = NameCache[tuple[bytes, QuotaKind], _Around](_MAX_CACHED_BYTES)


def _joined(rows: Sequence[Charged], texts: Mapping[QuotaKind, Iterator[bytes]], shapes: Shapes) -> Iterator[bytes]:
    """The texts of each row's charges, from those of each kind in the order of their rows."""
    of_shape = {
        encoded: [texts[charge.kind] for charge in shape.charges if charge.kind in texts]
        for encoded, shape in shapes.items()
    }
    for row in rows:
        yield b",".join([next(text) for text in of_shape[row.shape]])


def _texts(
    kind: QuotaKind, rows: Sequence[EntityCharged], outcomes: Outcomes, values: Sequence[bytes], shapes: Shapes
) -> list[bytes]:
    """The charges of one kind as JSON."""
    charged = [rows[row] for row in outcomes.rows]
    around = {
        encoded: _around(encoded, kind, charge)
        for encoded, shape in shapes.items()
        for charge in shape.charges
        if charge.kind is kind
    }
    verdicts, rates = _verdicts(outcomes), number_texts(outcomes.rates)
    if kind.family is Family.MUTATIONS:
        tokens = number_texts(outcomes.tokens)
        verdicts = [b"".join((verdict, b',"tokens":', left)) for verdict, left in zip(verdicts, tokens, strict=True)]
    return [
        b"".join((before, row.entity, after, value, b',"rate":', rate, verdict, end))
        for row, value, rate, verdict in zip(charged, values, rates, verdicts, strict=True)
        for before, after, end in (around[row.shape],)
    ]


def _around(shape: bytes, kind: QuotaKind, charge: Charge) -> _Around:
    """The parts that rows of this shape share, of their charge of this kind."""
    try:
        return _AROUND[shape, kind]
    except KeyError:
        found = _Around.of(charge)
        return _AROUND.keep((shape, kind), found, ENTRY_BYTES + len(shape) + sum(map(len, found)))


def _verdicts(outcomes: Outcomes) -> list[bytes]:
    """The fields that say the wait of each charge.

    A refusal never carries 0 ms: shipped Kafka may round to 0, which looks like success.
    """
    verdicts = [_ALLOWED] * len(outcomes.rows)
    for position, violation in outcomes.violations.items():
        reported_ms = max(clamp_throttle_ms(violation.wait_ms), 1 if any(violation.refused) else 0)
        verdicts[position] = b',"throttle_ms":%d,"violated":true' % reported_ms
    return verdicts


def number_texts(numbers: Sequence[float | None]) -> list[bytes]:
    """Each number as JSON: one call for many.

    >>> number_texts([2.0, None, 1e-7])
    [b'2.0', b'null', b'1e-7']
    """
    texts: list[bytes] = []
    for first in range(0, len(numbers), _CHUNK):
        texts += _ENCODER.encode(numbers[first : first + _CHUNK])[1:-1].split(b",")
    return texts
