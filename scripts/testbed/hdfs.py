"""A real HDFS on loopback: a name node and data nodes, each a process of its own that ends with this one."""

import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen
from xml.sax.saxutils import escape

import msgspec

from scripts.testbed.broker import free_ports, last_error
from scripts.testbed.jars import HDFS_JARS
from scripts.testbed.job import wait_until
from scripts.testbed.processes import Child
from sluice.jvm.jars import pyspark_jars
from sluice.jvm.java import find_java
from sluice.state.errors import SluiceError

_HOST = "127.0.0.1"
_JVM_OPTIONS = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_OF_PYSPARK = ("hadoop-client-*", "slf4j-api-*", "log4j-*", "snappy-java-*")
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_LIVE = "Hadoop:service=NameNode,name=FSNamesystemState"
_START_S = 120
_STOP_S = 20
_ANSWER_S = 5.0


class HdfsError(SluiceError):
    """HDFS can't be started."""


class Hdfs:
    """A name node and `size` data nodes, as a context manager. A block has as many replicas as there are data nodes.

    A data node that was killed can be started again; it has its blocks then.
    """

    def __init__(self, folder: Path, size: int) -> None:
        """Start all. Raises HdfsError, JarError and JavaError."""
        self._folder, self._starts = folder, 0
        self._ports = free_ports(2 + 3 * size)
        self._size = size
        java, _ = find_java()
        jars = [jar for pattern in _OF_PYSPARK for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
        self._java = [java, *_JVM_OPTIONS]
        self._class_path = [*HDFS_JARS.paths(), *jars]
        self._nodes: list[Child] = []
        self._configure()
        self._format()
        self._name_node = self._start("namenode", _NAME_NODE)
        try:
            self._nodes = [self._start(f"datanode-{number}", _DATA_NODE) for number in range(size)]
            wait_until(self._all_live, _START_S)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`hdfs://127.0.0.1:PORT`."""
        return f"hdfs://{_HOST}:{self._ports[0]}"

    @property
    def data_nodes(self) -> list[Child]:
        """The data nodes, those that were killed included."""
        return self._nodes

    def restart(self, number: int) -> None:
        """Start a data node in the place of one that was killed."""
        self._nodes[number] = self._start(f"datanode-{number}", _DATA_NODE)

    def stop(self) -> None:
        """End all processes."""
        for child in [*self._nodes, self._name_node]:
            child.end(signal.SIGTERM, _STOP_S)

    def _all_live(self) -> bool:
        """Whether the name node serves and knows all data nodes. Raises HdfsError if a process has ended."""
        for name, child in [("namenode", self._name_node), *self._named()]:
            if not child.alive:
                log = next(self._folder.glob(f"{name}-*.log"))
                raise HdfsError(f"HDFS's {name} ended: {last_error(log.read_text(errors='replace'))}; all of it: {log}")
        try:
            with urlopen(f"http://{_HOST}:{self._ports[1]}/jmx?qry={_LIVE}", timeout=_ANSWER_S) as answer:
                beans = msgspec.json.decode(answer.read())["beans"]
        except (URLError, OSError):
            return False
        return bool(beans) and beans[0]["NumLiveDataNodes"] == self._size

    def _named(self) -> list[tuple[str, Child]]:
        return [(f"datanode-{number}", child) for number, child in enumerate(self._nodes)]

    def _configure(self) -> None:
        _write(self._conf("namenode"), self._common() | self._of_name_node())
        for number in range(self._size):
            _write(self._conf(f"datanode-{number}"), self._common() | self._of_data_node(number))

    def _common(self) -> dict[str, str]:
        return {
            "fs.defaultFS": self.url,
            "dfs.replication": str(self._size),
        }

    def _of_name_node(self) -> dict[str, str]:
        return {
            "dfs.namenode.name.dir": (self._folder / "name").as_uri(),
            "dfs.namenode.http-address": f"{_HOST}:{self._ports[1]}",
            "dfs.namenode.safemode.extension": "0",
        }

    def _of_data_node(self, number: int) -> dict[str, str]:
        address, http, ipc = (f"{_HOST}:{port}" for port in self._ports[2 + 3 * number : 5 + 3 * number])
        return {
            "dfs.datanode.data.dir": (self._folder / f"data-{number}").as_uri(),
            "dfs.datanode.hostname": _HOST,
            "dfs.datanode.address": address,
            "dfs.datanode.http.address": http,
            "dfs.datanode.ipc.address": ipc,
        }

    def _conf(self, name: str) -> Path:
        return self._folder / "conf" / name

    def _command(self, name: str, main_class: str) -> list[str]:
        return [*self._java, "-cp", ":".join(map(str, [self._conf(name), *self._class_path])), main_class]

    def _format(self) -> None:
        log = self._folder / "format.log"
        with log.open("w") as output:
            command = [*self._command("namenode", _NAME_NODE), "-format", "-force", "-nonInteractive"]
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            reason = last_error(log.read_text(errors="replace"))
            raise HdfsError(f"HDFS can't be formatted in {self._folder}: {reason}; all of it: {log}")

    def _start(self, name: str, main_class: str) -> Child:
        self._starts += 1
        return Child(self._command(name, main_class), self._folder / f"{name}-{self._starts}.log")


def _write(folder: Path, properties: Mapping[str, str]) -> None:
    """A folder of configuration for the class path of a node."""
    folder.mkdir(parents=True)
    lines = (
        f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
        for key, value in properties.items()
    )
    content = "\n".join(["<configuration>", *lines, "</configuration>"])
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(content)
