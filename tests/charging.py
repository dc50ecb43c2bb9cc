"""Charging pages of counters with rows, and the outcomes of each row instead of columns."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.state.arithmetic.counter import Charge, Outcome
from sluice.state.arithmetic.outcomes import Outcomes, Violation
from sluice.state.arithmetic.shapes import Shapes, encode_shape
from sluice.state.quotas.kinds import Family, QuotaSettings
from sluice.state.store.pages import Pages


class Row(NamedTuple):
    """A row as a page is charged with it."""

    timestamp_ms: int
    shape: bytes
    amounts: list[float]

    @classmethod
    def of(cls, timestamp_ms: int, charges: Sequence[Charge]) -> "Row":
        """The row of a request with these charges."""
        return cls(timestamp_ms, encode_shape(charges), [amount for charge in charges for amount in charge.amounts])


def charge(
    page: Pages, rows_by_key: Mapping[str, Sequence[Row]], settings: QuotaSettings
) -> list[tuple[Row, list[Outcome]]]:
    """Charge a page; each row with its outcomes, in the order of its charges."""
    shapes = Shapes()
    rows, outcomes = page.charge(rows_by_key, shapes, settings)
    places = {(row, kind): place for kind, of_kind in outcomes.items() for place, row in enumerate(of_kind.rows)}
    return [
        (row, [_outcome(each, outcomes[each.kind], places[number, each.kind]) for each in charges])
        for number, row in enumerate(rows)
        for charges in (shapes[row.shape].charges_of(row.amounts),)
    ]


def _outcome(charge: Charge, outcomes: Outcomes, place: int) -> Outcome:
    is_mutations = charge.kind.family is Family.MUTATIONS
    allowed = Violation(0, [False] * len(charge.amounts) if is_mutations else ())
    found = outcomes.violations.get(place, allowed)
    return Outcome(
        charge,
        outcomes.values[place],
        place in outcomes.violations,
        found.wait_ms,
        outcomes.rates[place],
        outcomes.tokens[place] if is_mutations else None,
        list(found.refused) if is_mutations else (),
        outcomes.samples.get(place),
    )
