"""The page "why is it slow?": the answer of `sluice explain --slow`, for one client at a time."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from sluice.sinks.errors import QueryError
from sluice.sinks.tables.query import Tables
from sluice.state.quotas.entity import Tags
from sluice_insight.reports.span import Span
from sluice_insight.slow.sources import Answer, HeardTelemetry, Recorded, slow_client
from sluice_insight.slow.verdict import near_text
from sluice_insight.slow.words import COLUMNS, cells

MINUTES = (10, 60, 360)
"""Lengths of the line of time that one may choose."""

KEPT_MS = 10_000
"""Time for which an answer is shown again: the tables have nothing newer, and a query takes a part of a second."""

_MOST_KEPT = 100
_NOWHERE = Recorded(Tables("", "", {}), "")
_MOST_NAME = 32_767


class SlowPage:
    """Answers on clients, each kept for KEPT_MS."""

    def __init__(self, recorded: Recorded = _NOWHERE) -> None:
        self.heard = HeardTelemetry()
        self._recorded = recorded
        self._lock = Lock()
        self._kept = OrderedDict[tuple[Tags, int, bool], tuple[int, Answer | str]]()

    def of(self, given: Mapping[str, str], now_ms: int) -> dict[str, object]:
        """The variables of the page's template, for the parameters of an address."""
        client = Tags(given.get("user", "")[:_MOST_NAME], given.get("client_id", "")[:_MOST_NAME])
        minutes = minutes_of(given)
        answer = self.answer(client, minutes, now_ms) if client != Tags() else None
        return shown(answer) | {"asked": client, "minutes": minutes, "choices": MINUTES}

    def answer(self, client: Tags, minutes: int, now_ms: int, *, only: bool = False) -> Answer | str:
        """The answer on the last minutes of a client, or the reason why there is none."""
        key = client, minutes, only
        with self._lock:
            kept_ms, answer = self._kept.get(key, (0, ""))
            if not answer or not 0 <= now_ms - kept_ms < KEPT_MS:
                span = Span(now_ms - minutes * 60_000, now_ms)
                try:
                    answer = slow_client(self._recorded, client, span, self.heard.within(span), only=only)
                except QueryError as error:
                    answer = str(error)
                self._kept[key] = now_ms, answer
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            return answer


def shown(answer: Answer | str | None) -> dict[str, object]:
    """The variables of the macro `slow_answer`."""
    if not isinstance(answer, Answer):
        return {"answer": None, "trouble": answer, "columns": COLUMNS, "cells": [], "near": []}
    rows = [cells(row, answer.step_ms) for row in reversed(answer.rows)]
    near = [near_text(each) for each in answer.evidence.waits if each.used is not None]
    return {"answer": answer, "trouble": None, "columns": COLUMNS, "cells": rows, "near": near}


def minutes_of(given: Mapping[str, str]) -> int:
    """The length of the line that an address asks for; the shortest for what is none."""
    return next((each for each in MINUTES if str(each) == given.get("minutes")), MINUTES[0])
