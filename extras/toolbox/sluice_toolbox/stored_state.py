"""The state of a committed micro-batch, read by Spark's own class of a state store, in a Java without a Spark session.

A session takes ten times as long to start. Spark's class finds snapshot and changes, and checks them; what is read here
is its rows: a version byte, and Spark's row format, in which 8 bytes of flags precede a field of 8 bytes each, and a
field of variable length is its place in the row (upper half) and its length.
"""

import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

from py4j.protocol import Py4JError, Py4JJavaError

from sluice.configs.settings import Settings
from sluice.process.processes import ENDING, handled_by
from sluice.streaming.checkpoint.folder import Checkpoint
from sluice.streaming.errors import CheckpointError
from sluice.streaming.runtime.properties import bare_java, checkpoint_properties
from sluice_toolbox.machine import Jvm

_OPERATOR = 0
"""Number of the stateful operator in the plan: there is one."""

_KEY = struct.Struct("<x8xi4x")
_FIELD = struct.Struct("<II")  # length and place of a field of variable length
_STATE_AT, _PAYLOAD_AT = 8, 16
"""Where the state is in a row of values, and the payload in the state, after its format's version."""

_HADOOP = "spark.hadoop."


def stored_pages(settings: Settings, checkpoint: Checkpoint, batch_id: int, partitions: int) -> dict[int, bytes]:
    """The pages of a micro-batch that is committed, by Spark's key. Raises CheckpointError, JarError and JavaError."""
    pages: dict[int, bytes] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("sluice-state-"))
        class_path, options = bare_java(settings)
        java = stack.enter_context(Jvm(class_path, options)).packages
        try:
            configuration = java.org.apache.hadoop.conf.Configuration()
            for name, value in (checkpoint_properties(settings) | settings.spark).items():
                configuration.set(name.removeprefix(_HADOOP), value)
            for partition in range(partitions):
                location = f"{checkpoint.location}/state/{_OPERATOR}/{partition}"
                pages |= _pages(_records(java, configuration, location, batch_id + 1, f"{folder}/{partition}"))
        except Py4JJavaError as error:
            reason = str(error.java_exception.toString()).splitlines()[0]
            raise CheckpointError(f"the state in {checkpoint.location} can't be read: {reason}") from error
        except (Py4JError, struct.error) as error:
            raise CheckpointError(f"the state in {checkpoint.location} can't be read: {error}") from error
    return pages


def _records(java: Any, configuration: Any, location: str, version: int, folder: str) -> bytes:
    """All keys and values of a version of a state store, one after the other, in one call: one for each takes long."""
    state, none = java.org.apache.spark.sql.execution.streaming.state, java.scala.Option.empty()
    local = java.java.io.File(folder)
    local.mkdirs()
    store = state.RocksDB(
        location, java.org.apache.spark.sql.execution.streaming.state.RocksDBConf.apply(), local, configuration, "",
        False, False, 0, none, none,
    )  # fmt: skip
    try:
        rows = store.load(version, none, True, False).iterator()
        collected = java.java.io.ByteArrayOutputStream()
        take = _taking(java, state.ByteArrayPair(None, None).getClass(), collected)
        java.scala.jdk.javaapi.CollectionConverters.asJava(rows).forEachRemaining(take)
        return bytes(collected.toByteArray())
    finally:
        store.close()


def _taking(java: Any, pair: Any, collected: Any) -> Any:
    """A Java function that writes key and value of a pair to a stream."""
    invoke, lang = java.java.lang.invoke, java.java.lang
    lookup, blob = invoke.MethodHandles.publicLookup(), lang.Class.forName("[B")
    write = lookup.bind(collected, "writeBytes", invoke.MethodType.methodType(lang.Void.TYPE, blob))
    key, value = (
        invoke.MethodHandles.collectArguments(
            write, 0, lookup.findVirtual(pair, part, invoke.MethodType.methodType(blob))
        )
        for part in ("key", "value")
    )
    both = invoke.MethodHandles.foldArguments(value, key)
    return invoke.MethodHandleProxies.asInterfaceInstance(lang.Class.forName("java.util.function.Consumer"), both)


def _pages(records: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(records):
        (key,) = _KEY.unpack_from(records, at)
        row = at + _KEY.size + 1
        length, place = _FIELD.unpack_from(records, row + _STATE_AT)
        state = row + place
        size, start = _FIELD.unpack_from(records, state + _PAYLOAD_AT)
        yield key, records[state + start : state + start + size]
        at = state + length


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder of temporary files that is gone after this block of the main thread, also at SIGTERM and SIGHUP.

    They end the process by SystemExit, so that other blocks end too.
    """

    def leave(number: int, _: FrameType | None) -> NoReturn:
        for each in ENDING:
            signal.signal(each, lambda *_: None)  # a further one would cut the end short
        sys.exit(128 + number)

    with handled_by(leave), TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        yield Path(name)
