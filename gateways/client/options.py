"""The options of one gateway, and what they accept."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from configs.kafka import TopicName
from gateways.client.event_sender import WhenFull
from gateways.errors import InvalidOptionError
from state.decisions.request import MAX_ENTRIES

MAX_NAME_CHARACTERS = 1_000
"""Longest name of a gateway: every event carries it twice."""

_YEAR_MS = 366 * 24 * 3_600_000


class StalePolicy(StrEnum):
    """What `check` returns while an event older than `stale_after_s` may be without a decision."""

    FAIL_OPEN = "fail_open"
    FAIL_CLOSED = "fail_closed"


class BeforeKnown(StrEnum):
    """What `check` says of a client that isn't known to wait, while not all is read that could say so."""

    ALLOW = "allow"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The options of one gateway. Its events carry `name` as `gateway`.

    A string is taken for the member it names. Raises InvalidOptionError, naming option and what it accepts, for
    anything else that is not accepted.
    """

    name: str = "gateway"
    requests_topic: str = "quota-requests"
    decisions_topic: str = "quota-decisions"
    policy: StalePolicy = StalePolicy.FAIL_OPEN
    stale_after_s: float = 30.0
    lookback_s: float = 10.0  # how far back a new gateway reads the decisions topic; longer waits are in waits_topic
    max_muted: int = 100_000  # counters with a wait that are kept
    max_unsent: int = 100_000  # events kept in memory until Kafka has them
    when_full: WhenFull = WhenFull.BLOCK
    close_timeout_s: float = 10.0  # how long close tries to publish the remaining events
    limits_topic: str = "quota-limits"
    waits_topic: str = "quota-waits"
    before_limits: BeforeKnown = BeforeKnown.ALLOW  # before the first complete version of the limits topic
    before_current: BeforeKnown = BeforeKnown.ALLOW  # before the waits that were decided earlier are read
    max_mute_ms: int = 3_600_000  # no wait is longer than this
    max_charges_per_event: int = 1_000  # the job's enforce.max_charges_per_event; wider requests become several events

    def __post_init__(self) -> None:
        _check_text("name", self.name, MAX_NAME_CHARACTERS)
        for option in ("requests_topic", "decisions_topic", "limits_topic", "waits_topic"):
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
        _check_count("max_muted", self.max_muted, most=100_000_000)
        _check_count("max_unsent", self.max_unsent, most=100_000_000)
        _check_count("max_mute_ms", self.max_mute_ms, most=_YEAR_MS)
        _check_count("max_charges_per_event", self.max_charges_per_event, most=MAX_ENTRIES)


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
