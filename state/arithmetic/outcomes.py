"""The outcomes of many charges of one kind, by column."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.state.arithmetic.counter import Outcome
from sluice.state.arithmetic.sampled_rate import SampledRate
from sluice.state.quotas.kinds import Family


class Violation(msgspec.Struct, gc=False):
    """A violated quota: the wait that it asks for, not yet clamped, and flags of the topics that it refuses."""

    wait_ms: int
    refused: Sequence[bool] = ()


@dataclass(slots=True)
class Outcomes:
    """The outcomes of m charges of one kind, by column: see `sluice.state.arithmetic.counter.Outcome`.

    `rows` are the positions of their rows. `tokens` are those of mutations. `violations` and `samples` are by position
    among the m; a charge without a violation asks for no wait and refuses nothing. `resets` are positions too.
    """

    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    tokens: list[float | None] = field(default_factory=list)
    violations: dict[int, Violation] = field(default_factory=dict)
    samples: dict[int, SampledRate] = field(default_factory=dict)
    resets: set[int] = field(default_factory=set)

    def add(self, row: int, outcome: Outcome) -> None:
        """Append the outcome of a charge."""
        position = len(self.rows)
        self.rows.append(row)
        self.values.append(outcome.value)
        self.rates.append(outcome.rate)
        if outcome.charge.kind.family is Family.MUTATIONS:
            self.tokens.append(outcome.tokens)
        if outcome.violated:
            self.violations[position] = Violation(outcome.wait_ms, outcome.refused)
        if outcome.samples is not None:
            self.samples[position] = outcome.samples
        if not outcome.charge.amounts:
            self.resets.add(position)
