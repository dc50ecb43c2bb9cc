"""Many groups of `applyInPandasWithState` at once, as batched workers hand them to the operator."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol


class Group(NamedTuple):
    """One group: its key, its state's value if it has one, and its rows in the one column that is no key."""

    key: int
    state: tuple[Any, ...] | None
    rows: list[Any]


class GroupResults(NamedTuple):
    """The rows that a function emits for some groups, and the new value of the state of each.

    A list in a row may be an array of Arrow.
    """

    rows: Sequence[tuple[Any, ...]]
    states: Sequence[tuple[Any, ...]]


class Operator(Protocol):
    """A function of `applyInPandasWithState` that takes many groups at once, too, as `PageOperator` does."""

    def decide_groups(self, groups: Iterable[Group], /) -> tuple[Sequence[tuple[Any, ...]], Sequence[tuple[Any, ...]]]:
        """The parts of `GroupResults`."""
