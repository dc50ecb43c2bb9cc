"""The errors of settings: files that can't be used, and Kafka properties that lead to no broker."""

from sluice.state.errors import SluiceError


class InvalidSettingsError(SluiceError):
    """A YAML file can't be used: unreadable, not YAML, or a setting that is unknown, missing or wrong.

    The message names the file, the key or line, what was found and what would be right; never a secret.
    """
