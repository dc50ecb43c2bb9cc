"""The number of pages that the counters of a new checkpoint are spread over."""

from sluice.configs.settings import Settings
from sluice.streaming.workers.batched import are_batched

_BATCHED_PAGES = 4_096
"""With a million entities a page has about 240: 30 kB. More pages cost more where all of them are charged."""

_PAGES = 32
"""PySpark's own workers take a millisecond for a page."""


def new_pages(settings: Settings) -> int:
    """The pages that the settings ask for; null asks for what fits the workers."""
    if settings.state.pages is not None:
        return settings.state.pages
    return _BATCHED_PAGES if are_batched(settings.enforce.batched_workers) else _PAGES
