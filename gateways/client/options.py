"""The options of one gateway, and the values that they accept."""

import math
import os
import socket
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from sluice.gateways.errors import InvalidOptionError
from sluice.kafka_io.client import TopicName
from sluice.state.contract.records import MAX_ENTRIES, MAX_INSTANCE_CHARACTERS, MAX_INT32
from sluice.state.quotas.kinds import MAX_THROTTLE_MS, Coexistence, QuotaSettings, RequestPolicy, Window
from sluice.state.shares.alive import MAX_GATEWAYS

_YEAR_MS = 366 * 24 * 3_600_000


class StalePolicy(StrEnum):
    """The behaviour of a gateway while an event older than `stale_after_s` may be without a decision.

    KEEP_SHARES goes on as before, FAIL_OPEN charges nothing inline, FAIL_CLOSED refuses every client.
    """

    KEEP_SHARES = "keep_shares"
    FAIL_OPEN = "fail_open"
    FAIL_CLOSED = "fail_closed"


class BeforeKnown(StrEnum):
    """The behaviour of a gateway until it has read everything that could throttle a client.

    ALLOW lets clients through that aren't known to wait, HOLD refuses every client.
    """

    ALLOW = "allow"
    HOLD = "hold"


class WhenFull(StrEnum):
    """The fate of a request's events when `max_unsent` wait for Kafka: wait for room, or drop and count them."""

    BLOCK = "block"
    DROP = "drop"


def process_name() -> str:
    """A name that no other process has: host, process id and a random part."""
    return instance_name(f"{socket.gethostname()[:200]}-{os.getpid()}")


def instance_name(name: str) -> str:
    """The name of one process among those of a gateway's name: that and a random part.

    >>> instance_name("edge")[:-8]
    'edge-'
    """
    return f"{name[:200]}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of one gateway. Its events carry `name` as `gateway`; several gateways may have the same.

    A string stands for the member that has this value. Raises InvalidOptionError, which names the option and the values
    it accepts, for any other value.
    """

    name: str = field(default_factory=process_name)
    requests_topic: str = "quota-requests"
    sums_topic: str = "quota-sums"
    policy: StalePolicy = StalePolicy.KEEP_SHARES
    stale_after_s: float = 30.0
    lookback_s: float = 10.0  # how far back a new gateway reads the sums topic; longer waits are in waits_topic
    max_waits: int = 100_000  # counters with a wait that are kept
    max_unsent: int = 100_000  # events kept in memory until Kafka has them; those of one request more
    when_full: WhenFull = WhenFull.BLOCK
    close_timeout_s: float = 10.0  # how long close tries to publish the remaining events
    limits_topic: str = "quota-limits"
    waits_topic: str = "quota-waits"
    before_limits: BeforeKnown = BeforeKnown.ALLOW  # before the first complete version of the limits topic
    before_current: BeforeKnown = BeforeKnown.ALLOW  # before the waits that were decided earlier are read
    max_wait_ms: int = 3_600_000  # no wait is longer than this
    max_charges_per_event: int = 50  # the job's enforce.max_charges_per_event; wider requests become several events
    max_counters: int = 100_000  # counters of own clients that are kept, and as many known from decisions only
    expected_gateways: int = 1  # counted as alive until the first own heartbeat is decided
    decide_timeout_ms: int = 10_000  # how long `admit_mutations` waits for a decision
    quota: QuotaSettings = field(default_factory=QuotaSettings)  # the job's section `quota`

    def __post_init__(self) -> None:
        _check_text("name", self.name, MAX_INSTANCE_CHARACTERS)
        for option in ("requests_topic", "sums_topic", "limits_topic", "waits_topic"):
            _check_topic(option, getattr(self, option))
        members: dict[str, type[StrEnum]] = {
            "policy": StalePolicy,
            "when_full": WhenFull,
            "before_limits": BeforeKnown,
            "before_current": BeforeKnown,
        }
        for option, kind in members.items():
            object.__setattr__(self, option, _member(option, getattr(self, option), kind))
        _check_seconds("stale_after_s", self.stale_after_s, least=0.001)
        _check_seconds("lookback_s", self.lookback_s, least=0)
        _check_seconds("close_timeout_s", self.close_timeout_s, least=0)
        _check_count("max_waits", self.max_waits, most=100_000_000)
        _check_count("max_unsent", self.max_unsent, most=100_000_000)
        _check_count("max_wait_ms", self.max_wait_ms, most=_YEAR_MS)
        _check_count("max_charges_per_event", self.max_charges_per_event, most=MAX_ENTRIES)
        _check_count("max_counters", self.max_counters, most=100_000_000)
        _check_count("expected_gateways", self.expected_gateways, most=MAX_GATEWAYS)
        _check_count("decide_timeout_ms", self.decide_timeout_ms, most=_YEAR_MS)
        _check_quota(self.quota)


def _member(option: str, value: Any, kind: type[StrEnum]) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidOptionError(option, value, f"one of {', '.join(kind)}") from None


def _check_text(option: str, value: Any, longest: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise InvalidOptionError(option, value, f"a string of 1 to {longest} characters")


def _check_topic(option: str, value: Any) -> None:
    try:
        msgspec.convert(value, TopicName)
    except msgspec.ValidationError:
        raise InvalidOptionError(option, value, "a topic's name: 1 to 249 of a-z A-Z 0-9 . _ -") from None


def _check_seconds(option: str, value: Any, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= value <= _YEAR_MS / 1000:
        raise InvalidOptionError(option, value, f"a number of seconds from {least:g} to {_YEAR_MS // 1000}")


def _check_count(option: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidOptionError(option, value, f"a whole number from 1 to {most}")


def _check_quota(value: Any) -> None:
    if not isinstance(value, QuotaSettings):
        raise InvalidOptionError("quota", value, "QuotaSettings")
    for name in ("client_window", "controller_window"):
        window = getattr(value, name)
        if not isinstance(window, Window):
            raise InvalidOptionError(f"quota.{name}", window, "a Window")
        _check_count(f"quota.{name}.samples", window.samples, most=MAX_INT32)
        _check_count(f"quota.{name}.window_ms", window.window_ms, most=MAX_THROTTLE_MS)
    _check_count("quota.num_io_threads", value.num_io_threads, most=MAX_INT32)
    for name, kind in (("policy", RequestPolicy), ("coexistence", Coexistence)):
        if not isinstance(getattr(value, name), kind):
            raise InvalidOptionError(f"quota.{name}", getattr(value, name), f"one of {', '.join(kind)}")
