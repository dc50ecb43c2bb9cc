"""Parts of extras that settings name: sections of their own, and the stores of checkpoints by URI scheme.

An extra names its section's class in the entry points of the group `sluice.settings`, under the section's name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from sluice.configs.errors import InvalidSettingsError
from sluice.process.format import error_line
from sluice.state.errors import SluiceError

JOB_PARTS = "sluice.job_parts"
"""The group of entry points of parts of the job, which it asks for (`sluice.streaming.runtime.job_parts`)."""

_SECTIONS = "sluice.settings"
_STORES = "sluice.checkpoint_stores"
_QUOTA_SOURCES = "sluice.quota_sources"
_OTHER_SCHEMES = "any"
_SHARED_STORAGE = "of the extra shared-storage; pip install 'sluice-kafka[shared-storage]'"
_OWNERS = {"elastic": "of the extra elastic; pip install 'sluice-kafka[elastic]'", "s3": _SHARED_STORAGE}
"""Section -> the extra that has it and how to install it, for those that may be missing."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an extra: a frozen dataclass whose fields each have a type that msgspec reads, and a default."""

    paths: ClassVar[tuple[str, ...]] = ()
    """The fields that are paths: a relative one is of the folder that the job starts in."""

    @property
    def gives_way(self) -> bool:
        """True if limits give way to the load of brokers by it, so that reservations count."""
        return False

    def check(self, places: Mapping[str, str]) -> None:
        """Raise InvalidSettingsError, without the file's name, if it can't be right with these checkpoints and tables.

        `places` are their settings' names and locations.
        """

    def environment(self, places: Iterable[str], environment: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 # most need none
        """The variables beside those of `environment` that processes need to reach these places."""
        return {}


SectionT = TypeVar("SectionT", bound=Section)
KindT = TypeVar("KindT")


@cache
def sections() -> Mapping[str, type[Section]]:
    """The sections of the extras that are installed. Raises InvalidSettingsError for one of another release."""
    return {point.name: loaded(point) for point in entry_points(group=_SECTIONS)}


def missing_section(name: str) -> str | None:
    """The extra to install for a section; None for a section that no extra has."""
    return f"section {name} is {_OWNERS[name]}" if name in _OWNERS else None


def store_point(scheme: str) -> EntryPoint:
    """The entry point of the store for a URI scheme. Raises InvalidSettingsError if no extra has one."""
    found = {point.name: point for point in entry_points(group=_STORES)}
    point = found.get(scheme, found.get(_OTHER_SCHEMES))
    if point is None:
        raise InvalidSettingsError(f"storage by URI ({scheme}://) is {_SHARED_STORAGE}")
    return point


def quota_source(source: str) -> Any:
    """The object that an extra gives for a `quotas.source`. Raises InvalidSettingsError if none has it, or fits."""
    for point in entry_points(group=_QUOTA_SOURCES, name=source):
        return loaded(point)
    raise InvalidSettingsError(f"quotas.source: {source} is of the extra toolbox; pip install 'sluice-kafka[toolbox]'")


def loaded(point: EntryPoint) -> Any:
    """The class or function that an extra names. Raises InvalidSettingsError if the extra doesn't fit."""
    try:
        found = point.load()
        if not callable(found):
            raise TypeError(f"{point.value} is no function")
        return found
    except (Exception, SystemExit) as error:  # an extra's own code runs, and may raise anything
        raise InvalidSettingsError(misfit_text(point, error)) from error


def called(point: EntryPoint, kind: type[KindT], *arguments: object) -> KindT:
    """The answer of the function that an extra names. Raises InvalidSettingsError if the extra doesn't fit."""
    function = loaded(point)
    try:
        made = function(*arguments)
        if not isinstance(made, kind):
            raise TypeError(f"{point.value} gives {type(made).__name__} in the place of {kind.__name__}")
        return made
    except SluiceError:
        raise
    except (Exception, SystemExit) as error:  # as above
        raise InvalidSettingsError(misfit_text(point, error)) from error


def misfit_text(point: EntryPoint, error: BaseException) -> str:
    """The reason why an extra's part can't be used, and the cure."""
    of = "an extra" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    why = f"doesn't fit this sluice-kafka ({error_line(error)}); install the same version of both"
    return f"{point.name} is of {of}, which {why}"
