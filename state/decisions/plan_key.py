"""The key of a request's plan: all that decides what it is charged to, for those that keep the plans of requests."""

from sluice.state.contract.records import HEARTBEAT_API, Mutation, Request
from sluice.state.decisions.charge_plan import (
    BYTE_APIS,
    CLUSTER_ACTION_APIS,
    COUNTED_APIS,
    DRAFT_EXEMPT_APIS,
    MUTATION_APIS,
    SASL_HANDSHAKE,
    has_client_bytes,
    is_strict,
)

PLANNED_APIS = frozenset(
    {HEARTBEAT_API, *BYTE_APIS, *MUTATION_APIS, *COUNTED_APIS, *CLUSTER_ACTION_APIS, *DRAFT_EXEMPT_APIS, SASL_HANDSHAKE}
)
"""The APIs whose requests are charged by a rule of their own. All others are charged alike."""

_ANY_API = "Metadata"
"""Stands for each API that is charged request time alone."""

PlanKey = tuple[str, str, str, bool, bool, bool, bool, bool, bool, bool, bool, bool]
"""User, client-id, and all that decides what a request is charged to, but for topic-partitions: see `plan_key`."""


def planned_api(api: str) -> str:
    """The API, or the one that stands for all that are charged alike: a client may name any."""
    return api if api in PLANNED_APIS else _ANY_API


def plan_key(request: Request) -> PlanKey:
    """A client may name any API and any version: those that are charged alike have one name in it."""
    api = request.api
    return (
        request.user or "",
        request.client_id or "",
        planned_api(api),
        api in MUTATION_APIS and is_strict(request),
        request.validate_only,
        request.cluster_action,
        request.authenticating,
        request.withheld,
        has_client_bytes(request),
        bool(request.mutations),
        request.mutations_charged is not None,
        request.request_time_ns is not None or request.network_time_ns is not None,
    )


def request_like(key: PlanKey) -> Request:
    """A request with this key: no plan that is kept can depend on anything else."""
    user, client_id, api, strict, validate_only, cluster_action, authenticating, withheld, *amounts = key
    has_bytes, has_mutations, has_executed, has_time = amounts
    return Request(
        api,
        user=user,
        client_id=client_id,
        api_version=None if strict else 0,
        validate_only=validate_only,
        cluster_action=cluster_action,
        authenticating=authenticating,
        withheld=withheld,
        bytes=0 if has_bytes else None,
        mutations=[Mutation("", 0)] if has_mutations else [],
        mutations_charged=0 if has_executed else None,
        request_time_ns=0 if has_time else None,
    )
