"""Many groups of `applyInPandasWithState` at once, as workers of an extra may hand them to the operator."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Group(NamedTuple):
    """One group: its key, its state's value if it has one, and its rows in the one column that is no key."""

    key: int
    state: tuple[Any, ...] | None
    rows: list[Any]


class Groups(list[Group]):
    """The groups that a batched worker gives the function instead of the frames of one, without key and state.

    The function returns `Decided` for them.
    """


class Decided(NamedTuple):
    """The rows that a function emits for some groups, and the new value of the state of each.

    A list in a row may be an array of Arrow.
    """

    rows: Sequence[tuple[Any, ...]]
    states: Sequence[tuple[Any, ...]]
