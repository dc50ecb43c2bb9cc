"""The errors of set-up and start. Each message is one line: what is wrong, where, and what would be right."""

from state.errors import SluiceError


class JavaError(SluiceError):
    """There is no Java that Spark and Kafka run on."""


class JarError(SluiceError):
    """A jar can't be downloaded, or isn't the one that was checked when its version was chosen."""


class BrokerError(SluiceError):
    """The embedded Kafka broker can't be started."""


class CheckpointError(SluiceError):
    """A checkpoint folder can't be used, or was made with other settings."""


class StateFileError(SluiceError):
    """A file of exported balances can't be used: missing, damaged, or made with other settings."""


class JobError(SluiceError):
    """A streaming query of the job ended by itself."""


class HealthError(SluiceError):
    """The job can't answer health checks at the port of the settings."""


class LogFileError(SluiceError):
    """The log file of the command line can't be written."""


class CheckError(SluiceError):
    """A check of the doctor fails."""
