"""`sluice unmute`: the counters of a client are reset, and its waits end."""

from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import BootstrapServersOption, ConfigOption, job_settings
from sluice.state.contract.records import Unmute, UnmutedEntity
from sluice.state.decisions.checks import check_unmute
from sluice.state.errors import InvalidRequestError
from sluice_reading.options import ClientIdOption, UserOption


def unmute(
    user: UserOption = None,
    client_id: ClientIdOption = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic, with --partition, in place of a client.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Partition of the topic.", min=0)] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Tenant, in place of a client.")] = None,
    quota: Annotated[str | None, typer.Option("--quota", help="Reset the counter of this quota only.")] = None,
    config: ConfigOption = None,
    bootstrap_servers: BootstrapServersOption = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the job's answer.", min=0)] = 60,
) -> None:
    """Reset the counters of a client, or that of a tenant, and end the waits in every gateway.

    Correct the limit first: under the old one the next request is throttled again. Publishes a control record to the
    requests topic and waits for the job's answer. A counter that several clients share, such as a user's, is reset for
    all of them; client-ids with counters of their own are named, not reset.
    """
    if user is None and client_id is None and topic is None and tenant is None and partition is None:
        raise UsageError("nobody to unmute; give --user, --client-id or both, --topic with --partition, or --tenant")
    wanted = Unmute("unmute", UnmutedEntity(user, client_id, topic, partition, tenant), quota)
    try:
        check_unmute(wanted)
    except InvalidRequestError as error:
        raise UsageError(str(error)) from None
    from sluice_toolbox.unmute import run_unmute  # Kafka's client is slow to import

    for line in run_unmute(job_settings(config, bootstrap_servers), wanted, timeout_s):
        typer.echo(line)
