"""Sluice's own login: a quota on it slows down requests, decisions and limits, and with them everybody."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from sluice.kafka_io.client import principal_of
from sluice.kafka_io.properties import has_layer
from sluice.state.contract.records import NO_LOGIN, Heartbeat
from sluice.state.quotas.entry import QuotaEntry
from sluice.state.quotas.kinds import QuotaKind
from sluice.state.quotas.resolution import Quotas
from sluice.state.troubles import some
from sluice_reading.brokers_seen import CALLBACK, EXEMPT, BrokerConfigs
from sluice_reading.quota_text import plain_number


class OwnLogin(NamedTuple):
    """Words on the login; on the quota that limits it, and the cure, "" if none does."""

    text: str
    limited: tuple[str, str] = ("", "")


def own_login(
    kafka: Mapping[str, str],
    limits: Iterable[QuotaEntry],
    cluster: Iterable[QuotaEntry],
    brokers: BrokerConfigs,
    callback_class: str,
    beats: Mapping[str, Heartbeat] | None,
) -> OwnLogin:
    """The quotas on Sluice's own login: those of the cluster, and the limits where brokers have the plugin's class.

    Their configuration shows that they exempt somebody, and not whom; heartbeats have each login with a client-id of
    Sluice, as this command's own, that they don't exempt. None are heartbeats that can't be read, as by a login that is
    throttled.
    """
    principal, configs = principal_of(kafka), brokers.values()
    has_plugin = [each.get(CALLBACK) == callback_class for each in configs]
    exempting = [any(key in each for key in EXEMPT) for each in configs]
    held = {each.principal: each for heartbeat in (beats or {}).values() for each in heartbeat.not_exempt}
    if held and any(exempting):
        clients = some([f"{name} (client-id {each.client_id})" for name, each in sorted(held.items())])
        return OwnLogin(
            "",
            (
                f"brokers don't exempt {clients}, by its client-id the job, a command or a gateway of Sluice (sluice is"
                " that of each which is given none): under a quota on it requests, decisions and limits wait",
                how_to_exempt(held),
            ),
        )
    if principal is None and has_layer(kafka, "SSL") and kafka.get("ssl.keystore.location"):
        return OwnLogin("unknown; brokers make a name of its certificate")
    user = NO_LOGIN if principal is None else principal.removeprefix("User:")
    if has_plugin and all(has_plugin) and all(exempting) and beats is not None:
        return OwnLogin(f"{user}; all brokers exempt somebody, and none has a login of Sluice that it doesn't exempt")
    client_id, texts = kafka.get("client.id", ""), dict[str, None]()
    for entries in (limits if any(has_plugin) else (), cluster):
        quotas = Quotas(entries)
        for kind in (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE):
            found = quotas.resolve_client(kind, user, client_id)
            if found.limit is not None and not found.shadow:
                texts[f"{kind} {plain_number(found.limit)}"] = None
    if texts:
        unless = ", unless brokers exempt it: no heartbeat can be read, which would say so" if beats is None else ""
        return OwnLogin(
            "",
            (
                f"{user}, which is Sluice's own, is limited: {', '.join(texts)}; requests, decisions and limits wait"
                f" for it{unless}",
                f"{how_to_exempt({f'User:{user}'})}; or give it a larger quota",
            ),
        )
    return OwnLogin(f"{user} has no quota")


def how_to_exempt(principals: Collection[str]) -> str:
    """The step by which every broker with the plugin exempts these logins of Sluice, and nobody else.

    >>> how_to_exempt({"User:ANONYMOUS"})
    'set client.id in section kafka, and of each Python gateway, to a secret, and sluice.exempt.client.id of every \
broker with the plugin to the same (User:ANONYMOUS in sluice.exempt.principals would exempt all clients without a \
login)'
    """
    steps = []
    if named := sorted(set(principals) - {f"User:{NO_LOGIN}"}):
        steps.append(
            f"name exactly {some(named)} in sluice.exempt.principals of every broker with the plugin: the type, each"
            " letter, blanks and case count, and semicolons separate names"
        )
    if len(named) < len(principals):
        steps.append(
            "set client.id in section kafka, and of each Python gateway, to a secret, and sluice.exempt.client.id of"
            f" every broker with the plugin to the same (User:{NO_LOGIN} in sluice.exempt.principals would exempt all"
            " clients without a login)"
        )
    return "; ".join(steps)
