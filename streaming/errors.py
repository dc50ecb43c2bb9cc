"""The errors of set-up and start. Each message is one line: what is wrong, where, and what is expected."""

from sluice.state.errors import SluiceError


class CheckpointError(SluiceError):
    """A checkpoint can't be used, or was created with other settings."""


class CheckpointStorageError(CheckpointError):
    """The storage that machines share doesn't answer, or refuses; it may be well again later."""


class LeadershipError(SluiceError):
    """Another driver works on the checkpoint, or nobody can say whether one does."""


class JobError(SluiceError):
    """A streaming query of the job ended and can't be restarted."""


class BrokenProcessError(SluiceError):
    """This process can't run a query any more, and a new one may."""


class RunFolderError(BrokenProcessError):
    """The folder of a run can't be made, or was removed while the job runs."""


class SparkStoppedError(BrokenProcessError):
    """Spark has stopped itself by an error."""


class ReleaseError(SluiceError):
    """A worker has other files of Sluice than the driver."""


class LogFileError(SluiceError):
    """The log file of the command line can't be written."""
