"""The command `sluice balance`: the present state of a client's counters, from the checkpoint."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.format import MAX_NAME, print_json, print_lines, table_lines
from sluice.cli.options import ClientIdOption, ConfigOption, UserOption, job_settings
from sluice.cli.quota_text import counter_text
from sluice.configs.settings import Settings
from sluice.insight.format import figure, short
from sluice.kafka_io.clock import now_ms

if TYPE_CHECKING:
    from sluice.state.store.balance import Balance, Client

COLUMNS = ("counter", "quota", "rate", "limit", "tokens", "wait ms", "last charged s before")


def balance(
    user: UserOption = None,
    client_id: ClientIdOption = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the rates and tokens of a client's counters after the job's last committed micro-batch.

    Reads the checkpoint with Spark, so it takes some seconds and needs Java; a running job goes on undisturbed. One
    name means all counters with that name, both mean those that requests of that client may be charged to.
    """
    if not user and not client_id:
        raise UsageError("give --user, --client-id or both")
    settings = job_settings(config)
    from sluice.insight.reports.span import from_ms
    from sluice.state.store.balance import Client

    micro_batch, version, now_ms, found = _read(settings, Client(user or None, client_id or None))
    if json_output:
        answer = {"micro_batch": micro_batch, "quota_version": version, "at_ms": now_ms}
        print_json({**answer, "counters": [_mapping(one) for one in found]})
        return
    where = "imported balances, nothing charged yet" if micro_batch < 0 else f"state after micro-batch {micro_batch}"
    of_version = "" if version is None else f", version {version} of the quotas"
    typer.echo(f"{where}, as of {from_ms(now_ms).isoformat(timespec='seconds')}{of_version}")
    if not found:
        typer.echo("no counters: nothing was charged lately, so the whole of each limit is left")
        return
    print_lines(table_lines(COLUMNS, (_row(one, now_ms) for one in found)))


def _read(settings: Settings, client: "Client") -> tuple[int, int | None, int, "list[Balance]"]:
    """The micro-batch, the newest version of the quotas that the job knows, None without one, the time, the balances.

    The time is that before the state is read, which takes many seconds: decisions of that time are missing, and a later
    time would make a busy client look idle.
    """
    from sluice.state.store.balance import balances
    from sluice.streaming.balances.extract import committed_pages  # Spark takes a second to import
    from sluice.streaming.checkpoint.folder import Checkpoint
    from sluice.streaming.checkpoint.quota_snapshots import QuotaSnapshots

    at_ms = now_ms()
    origin, micro_batch, pages = committed_pages(settings, client.parts_of_keys())
    snapshots = QuotaSnapshots(Checkpoint(settings.enforce.checkpoint))
    version = max(snapshots.versions(), default=None)
    quotas = None if version is None else snapshots.load(version)
    found = balances(pages.values(), origin.pages, client, quotas, settings.quota, at_ms)
    return micro_batch, version, at_ms, found


def _row(one: "Balance", now_ms: int) -> tuple[str, ...]:
    return (
        short(counter_text(one.tags), 2 * MAX_NAME),
        f"{one.kind} (shadow)" if one.shadow else one.kind,
        figure(one.rate),
        figure(one.limit),
        figure(one.tokens),
        str(one.throttle_ms),
        f"{(now_ms - one.last_event_ms) / 1000:.1f}",
    )


def _mapping(one: "Balance") -> dict[str, Any]:
    """The names are those of a charge in a decision."""
    return {
        "entity": one.tags.to_mapping(),
        "quota": one.kind,
        "mode": "shadow" if one.shadow else "enforce",
        "limit": one.limit,
        "rate": one.rate,
        "tokens": one.tokens,
        "throttle_ms": one.throttle_ms,
        "last_event_ms": one.last_event_ms,
    }
