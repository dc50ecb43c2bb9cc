"""The capacities of brokers that are in force: a file that can't be read any more has a copy in the checkpoint."""

import logging
from collections.abc import Callable

from sluice.configs.capacity import broker_limits, read_capacity_file
from sluice.configs.errors import InvalidSettingsError
from sluice.configs.settings import Settings
from sluice.process.background import BackgroundService, LastError
from sluice.state.shares.load import BrokerLimits
from sluice.streaming.checkpoint.folder import Checkpoint

log = logging.getLogger("sluice.overrides")

_POLL_S = 60.0
_FILE = "capacity.json"


def has_copy(settings: Settings) -> bool:
    """True if an earlier start could read the file. Raises CheckpointError."""
    return Checkpoint(settings.enforce.checkpoint).sluice.read(_FILE) is not None


class CapacityFile:
    """The file that `brokers.capacity_file` names, and the copy of what was in it when it could be read last."""

    def __init__(self, settings: Settings, report: Callable[[str | None], None] = lambda _: None) -> None:
        """`report` is told by each poll why the file can't be read, None if it can."""
        self._brokers = settings.brokers
        self._files = Checkpoint(settings.enforce.checkpoint).sluice
        self._report = report
        self._last_error = LastError()

    def limits(self) -> BrokerLimits:
        """The capacities and the floor of disks. Raises InvalidSettingsError for a bad file that has no copy."""
        path, kept = self._brokers.capacity_file, None
        if path is None:
            return broker_limits(self._brokers)
        try:
            kept = self._files.read(_FILE)
            content = read_capacity_file(path)
            limits = broker_limits(self._brokers, content)
        except InvalidSettingsError as error:
            if kept is None:
                raise
            if self._last_error.is_new(error):
                log.error("%s; the capacities that were read last stay in force", error)
            self._report(str(error))
            return broker_limits(self._brokers, kept)
        if content != kept:
            self._files.write(_FILE, content)
        if self._last_error.ends():
            log.info("brokers.capacity_file %s can be read again; it is in force with the next start", path)
        self._report(None)
        return limits

    def services(self) -> list[BackgroundService]:
        """The service that looks whether there is still a file, if the settings name one."""

        def poll() -> None:
            self.limits()

        return [BackgroundService("capacities", poll, _POLL_S)] if self._brokers.capacity_file else []
