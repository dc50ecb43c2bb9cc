"""The errors of Java and its jars. Each message is one line: what is wrong, where, and what is expected."""

from sluice.state.errors import SluiceError


class JavaError(SluiceError):
    """No Java was found that Spark and Kafka run on."""


class JarError(SluiceError):
    """A jar can't be downloaded, or its checksum isn't the expected one."""
