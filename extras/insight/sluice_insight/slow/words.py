"""The line of time in words, the same in the command and on pages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from sluice.process.format import NOTHING, moment, percent
from sluice_insight.slow.line import Row
from sluice_insight.slow.sources import SlowReport
from sluice_insight.slow.verdict import near_text
from sluice_reading.format import quantity
from sluice_reading.text_tables import table_lines
from sluice_reading.texts import client_text
from sluice_reading.times import duration

COLUMNS = ("TIME", "MOVED", "REQUESTS", "USED", "THROTTLED", "DECIDED", "BY", "CLIENT SAW", "BUSY BROKERS")

_SAW: Mapping[str, Callable[[float], str]] = {
    "throttle_ms": lambda ms: f"throttled {duration(ms)}" if ms else "",
    "latency_ms": lambda ms: f"latency {duration(ms)}",
    "between_polls_ms": lambda ms: f"polled every {duration(ms)}",
    "poll_idle": lambda part: f"own work {percent(1 - part)}",
    "rebalances_per_min": lambda number: "rebalanced" if number else "",
}
"""The words for a figure of a client, by the fields of `Own`; "" for none."""


def json_answer(answer: SlowReport) -> dict[str, object]:
    """The answer as `--json` prints it."""
    names = {"user": answer.client.user, "client_id": answer.client.client_id, "tenant": answer.client.tenant}
    return {
        "client": {name: value for name, value in names.items() if value},
        "from_ms": answer.span.start_ms,
        "to_ms": answer.span.end_ms,
        "step_ms": answer.step_ms,
        "causes": [asdict(each) for each in answer.causes],
        "evidence": asdict(answer.evidence),
        "rows": [asdict(each) for each in answer.rows],
    }


def lines(answer: SlowReport, width: int | None) -> Iterator[str]:
    """The verdict, then the client and its tenant, the line of time, and other causes that count."""
    yield answer.causes[0].text
    whose = client_text(answer.client.user, answer.client.client_id)
    tenant = f", of tenant '{answer.client.tenant}'" if answer.client.tenant else ""
    yield f"{whose}{tenant}, {moment(answer.span.start_ms)} to {moment(answer.span.end_ms)} UTC"
    yield from (near_text(each) for each in answer.evidence.waits if each.used is not None)
    rows = [cells(row, answer.step_ms) for row in answer.rows]
    yield from table_lines(COLUMNS, rows, width, ("DECIDED", "REQUESTS"), ("BUSY BROKERS", "CLIENT SAW"))
    yield from (f"also: {each.text}" for each in answer.causes[1:])
    if not answer.evidence.tells:
        yield "the client sends no telemetry (KIP-714), or no broker takes it"


def cells(row: Row, step_ms: int) -> tuple[str, ...]:
    """A row in words, one for each of COLUMNS."""
    saw = [text(row.client[name]) for name, text in _SAW.items() if name in row.client]
    return (
        moment(row.at_ms)[-8:],
        quantity(row.sent_bytes * 1000 / step_ms, "B") + "/s" if row.sent_bytes else NOTHING,
        str(row.requests) if row.requests else NOTHING,
        percent(row.used),
        percent(row.waited_ms / step_ms) if row.waited_ms else NOTHING,
        percent(row.decided_ms / step_ms) if row.decided_ms else NOTHING,
        ", ".join(row.by) or NOTHING,
        ", ".join(filter(None, saw)) or NOTHING,
        "; ".join(row.brokers) or NOTHING,
    )
