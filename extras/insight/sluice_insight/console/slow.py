"""The page "why is it slow?": the answer of `sluice explain --slow`, for one client at a time."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, Lock

from sluice.state.quotas.entity import Tags
from sluice_insight.reports.span import Span
from sluice_insight.slow.sources import HeardTelemetry, Recorded, SlowReport, client_ids_of, slow_client
from sluice_insight.slow.verdict import near_text
from sluice_insight.slow.words import COLUMNS, cells
from sluice_reading.errors import QueryError
from sluice_reading.query import Tables

MINUTES = (10, 60, 360)
"""Lengths of the line of time that one may choose."""

KEPT_MS = 10_000
"""Time for which an answer is shown again: the tables have nothing newer, and a query takes a part of a second."""

MOST_QUERIES = 2
"""Queries of tables at once: fewer than there are threads for pages, so that a slow table keeps no page away."""

WAIT_S = 2.0
"""Longest wait for a turn, in which a page has a thread."""

MADE_LATER = "the tables are busy with other questions; ask again in some seconds"

_MOST_KEPT = 100
_NOWHERE = Recorded(Tables("", "", {}), "")
_MOST_NAME = 32_767
_Key = tuple[Tags, int, bool]


class Turns:
    """Turns to query tables: MOST_QUERIES at once, and one of each name. Thread-safe."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._changed = Condition()
        self._taken = set[str]()

    @contextmanager
    def of(self, name: str) -> Iterator[bool]:
        """A turn of a name; False if there was none in `wait_s`.

        >>> turns = Turns(wait_s=0)
        >>> with turns.of("alice") as first, turns.of("alice") as more, turns.of("bob") as bob, turns.of("eve") as eve:
        ...     first, more, bob, eve
        (True, False, True, False)
        """
        with self._changed:
            is_given = self._changed.wait_for(lambda: self._is_free(name), self._wait_s)
            if is_given:
                self._taken.add(name)
        try:
            yield is_given
        finally:
            if is_given:
                with self._changed:
                    self._taken.remove(name)
                    self._changed.notify_all()

    def _is_free(self, name: str) -> bool:
        return name not in self._taken and len(self._taken) < MOST_QUERIES


class SlowPage:
    """Answers on clients, each kept for KEPT_MS. `turns` are those of all who query the tables."""

    def __init__(self, recorded: Recorded = _NOWHERE, turns: Turns | None = None) -> None:
        self.heard = HeardTelemetry()
        self.turns = turns or Turns()
        self._recorded = recorded
        self._lock = Lock()
        self._kept = OrderedDict[_Key, tuple[int, SlowReport | str]]()

    def of(self, given: Mapping[str, str], now_ms: int) -> dict[str, object]:
        """The variables of the page's template, for the parameters of an address."""
        client = Tags(given.get("user", "")[:_MOST_NAME], given.get("client_id", "")[:_MOST_NAME])
        minutes = minutes_of(given)
        answer = self.answer(client, minutes, now_ms) if client != Tags() else None
        return shown(answer) | {"asked": client, "minutes": minutes, "choices": MINUTES}

    def answer(self, client: Tags, minutes: int, now_ms: int, *, only: bool = False) -> SlowReport | str:
        """The answer on the last minutes of a client, or the reason why there is none."""
        key = client, minutes, only
        if (known := self._known(key, now_ms)) is not None:
            return known
        with self.turns.of(client.user or client.client_id) as is_given:
            if (known := self._known(key, now_ms)) is not None:  # who had the turn before has asked the same
                return known
            if not is_given:
                return MADE_LATER
            span = Span(now_ms - minutes * 60_000, now_ms)
            answer: SlowReport | str
            try:
                answer = slow_client(self._recorded, client, span, self.heard.within(span), only=only)
            except QueryError as error:
                answer = str(error)
            self._keep(key, now_ms, answer)
            return answer

    def _known(self, key: _Key, now_ms: int) -> SlowReport | str | None:
        with self._lock:
            kept_ms, answer = self._kept.get(key, (0, ""))
        return answer if answer and 0 <= now_ms - kept_ms < KEPT_MS else None

    def _keep(self, key: _Key, now_ms: int, answer: SlowReport | str) -> None:
        with self._lock:
            self._kept[key] = now_ms, answer
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    def client_ids(self, user: str, minutes: int, now_ms: int) -> list[str]:
        """The client-ids of a user in the last minutes; none where there is no turn. Raises QueryError."""
        span = Span(now_ms - minutes * 60_000, now_ms)
        with self.turns.of(user) as is_given:
            return client_ids_of(self._recorded.tables, user, span) if is_given else []


def shown(answer: SlowReport | str | None) -> dict[str, object]:
    """The variables of the macro `slow_answer`."""
    if not isinstance(answer, SlowReport):
        return {"answer": None, "trouble": answer, "columns": COLUMNS, "cells": [], "near": []}
    rows = [cells(row, answer.step_ms) for row in reversed(answer.rows)]
    near = [near_text(each) for each in answer.evidence.waits if each.used is not None]
    return {"answer": answer, "trouble": None, "columns": COLUMNS, "cells": rows, "near": near}


def minutes_of(given: Mapping[str, str]) -> int:
    """The length of the line that an address asks for; the shortest for what is none."""
    return next((each for each in MINUTES if str(each) == given.get("minutes")), MINUTES[0])
