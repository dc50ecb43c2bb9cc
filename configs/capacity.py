"""Capacities of brokers, from settings and the file that Cruise Control has of them (its config/capacity.json)."""

import math
from pathlib import Path

import msgspec

from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import BrokersSettings
from sluice.state.errors import UNREADABLE
from sluice.state.shares.load import BrokerLimits, Capacities, Capacity

_OTHERS = -1
"""Broker id of the entry that holds for all brokers without one."""

_KB = 1024.0
"""Bytes that Cruise Control counts as one KB."""


class _OfBroker(msgspec.Struct, rename="camel"):
    broker_id: int
    capacity: dict[str, object]


class _File(msgspec.Struct, rename="camel"):
    broker_capacities: list[_OfBroker]


def broker_limits(brokers: BrokersSettings, content: bytes | None = None) -> BrokerLimits:
    """The capacities of the settings and the file that they name, and their floor of disks.

    With a `content` the file isn't read. Raises InvalidSettingsError.
    """
    capacities = load_capacities(brokers.capacity_file, content)
    if capacities.default == Capacity():
        capacities = capacities._replace(default=brokers.capacity)
    return BrokerLimits(capacities, brokers.disk_floor)


def read_capacity_file(path: str) -> bytes:
    """The content of the file. Raises InvalidSettingsError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidSettingsError(f"brokers.capacity_file {path} can't be read: {error.strerror}") from None


def load_capacities(path: str | None, content: bytes | None = None) -> Capacities:
    """The network capacities in a file, `NW_IN` and `NW_OUT` in KB/s; without a path there are none.

    With a `content` the file isn't read. Raises InvalidSettingsError for one that can't be read, or has another form.
    """
    if path is None:
        return Capacities()
    content = read_capacity_file(path) if content is None else content
    try:
        read = msgspec.convert(msgspec.json.decode(content), _File, strict=False)
        capacities = {each.broker_id: _capacity(each.capacity) for each in read.broker_capacities}
    except (ValueError, *UNREADABLE) as error:
        raise InvalidSettingsError(
            f"brokers.capacity_file {path} is no capacity file ({error}); expected"
            ' {"brokerCapacities": [{"brokerId": "-1", "capacity": {"NW_IN": "10000", "NW_OUT": "10000"}}]}'
        ) from None
    return Capacities(tuple(capacities.items()), capacities.get(_OTHERS, Capacity()))


def _capacity(given: dict[str, object]) -> Capacity:
    """Raises ValueError."""
    rates = [float(str(given.get(resource))) * _KB for resource in ("NW_IN", "NW_OUT")]
    if not all(0 < rate < math.inf for rate in rates):
        raise ValueError("a capacity is not above 0")
    return Capacity(*rates)
