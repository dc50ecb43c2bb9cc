"""Facts for the console without a broker, and names that try to be more than names."""

import json
from collections.abc import Callable
from typing import Any

from sluice.kafka_io.topic_follower import Reading, TopicFollower
from sluice.process.clock import now_ms
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaSettings
from sluice.state.quotas.limits import VERSION_KEY, LimitsView, limit_key, limit_value, version_end
from sluice_insight.console.pages import DeadLetters, Facts
from sluice_insight.console.tables import WeekMinutes
from sluice_insight.live import LiveModel
from sluice_insight.troubles_now import TroublesNow
from sluice_reading.job_probe import JobProbe
from sluice_reading.query import Tables
from tests.builders import DEFAULTS

HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}",
    "</td></tr></table><h1>x",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "a\nb\r\nSet-Cookie: x=1",
    "\x1b[31mred\x00",
    "&lt;b&gt;",
    "x" * 30_000,
    "%2e%2e/%00?&#",
]


def facts_of(
    *decisions: dict[str, Any],
    entries: tuple[QuotaEntry, ...] = (),
    clock: Callable[[], int] = now_ms,
    table: str = "/nonexistent/decisions",
) -> Facts:
    """The facts after these decisions, with these quotas in force, and a table of the decisions of the week."""
    model, limits = LiveModel(), LimitsView()
    model.on_records([json.dumps(each).encode() for each in decisions], clock())
    for entry in entries:
        limits.take(limit_key(entry), limit_value(entry, 4))
    limits.take(VERSION_KEY, version_end(4, len(entries)))
    tables = Tables(table, "/nonexistent/quotas", {})
    week = WeekMinutes(tables)
    follower = TopicFollower({}, Reading("quota-decisions", lambda *_: None))
    now = TroublesNow({}, DEFAULTS.topics, JobProbe(None), limits=limits, tables=lambda: week.unreadable)
    settings = QuotaSettings()
    return Facts(model, limits, DeadLetters(), week, tables, now, settings, [follower], clock=clock)
