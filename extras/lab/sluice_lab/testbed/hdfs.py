"""A real HDFS on loopback: a name node and data nodes, each a process of its own that ends with this one."""

import signal
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen
from xml.sax.saxutils import escape

import msgspec

from sluice.jvm.jars import pyspark_jars
from sluice.jvm.java import find_java
from sluice.state.errors import SluiceError
from sluice_demo.job import wait_until
from sluice_lab.testbed.jars import HDFS_JARS
from sluice_proxy.java_server import last_error
from sluice_proxy.processes import Child, free_ports

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


class Hdfs(AbstractContextManager["Hdfs"]):
    """A name node and `size` data nodes, as a context manager. A block has as many replicas as there are data nodes.

    A data node that was killed can be started again; it has its blocks then.
    """

    def __init__(self, folder: Path, size: int) -> None:
        """Start all. Raises HdfsError, JarError and JavaError."""
        self._folder, self._size, self._starts = folder, size, 0
        self._ports = free_ports(2 + 3 * size)
        java, _ = find_java()
        jars = [jar for pattern in _OF_PYSPARK for jar in sorted(pyspark_jars().glob(f"{pattern}.jar"))]
        self._java, self._class_path = [java, *_JVM_OPTIONS], [*HDFS_JARS.paths(), *jars]
        self._configure()
        self._format()
        self.data_nodes: list[Child] = []
        """The data nodes, those that were killed included."""
        self._name_node = self._start("namenode", _NAME_NODE)
        try:
            self.data_nodes += [self._start(f"datanode-{number}", _DATA_NODE) for number in range(size)]
            wait_until(self._all_live, _START_S)
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`hdfs://127.0.0.1:PORT`."""
        return f"hdfs://{_HOST}:{self._ports[0]}"

    def restart(self, number: int) -> None:
        """Start a data node in the place of one that was killed."""
        self.data_nodes[number] = self._start(f"datanode-{number}", _DATA_NODE)

    def stop(self) -> None:
        """End all processes."""
        for child in [*self.data_nodes, self._name_node]:
            child.end(signal.SIGTERM, _STOP_S)

    def _all_live(self) -> bool:
        """True if the name node serves and knows all data nodes. Raises HdfsError if a process has ended."""
        nodes = {"namenode": self._name_node} | {f"datanode-{n}": child for n, child in enumerate(self.data_nodes)}
        for name, child in nodes.items():
            if not child.alive:
                log = next(self._folder.glob(f"{name}-*.log"))
                raise HdfsError(f"HDFS's {name} ended: {last_error(log.read_text(errors='replace'))}; all of it: {log}")
        try:
            with urlopen(f"http://{_HOST}:{self._ports[1]}/jmx?qry={_LIVE}", timeout=_ANSWER_S) as answer:
                beans = msgspec.json.decode(answer.read())["beans"]
        except (URLError, OSError):
            return False
        return bool(beans) and beans[0]["NumLiveDataNodes"] == self._size

    def _configure(self) -> None:
        common = {"fs.defaultFS": self.url, "dfs.replication": str(self._size)}
        name_node = {
            "dfs.namenode.name.dir": (self._folder / "name").as_uri(),
            "dfs.namenode.http-address": f"{_HOST}:{self._ports[1]}",
            "dfs.namenode.safemode.extension": "0",
        }
        _write(self._conf("namenode"), common | name_node)
        for number in range(self._size):
            address, http, ipc = (f"{_HOST}:{port}" for port in self._ports[2 + 3 * number : 5 + 3 * number])
            data_node = {
                "dfs.datanode.data.dir": (self._folder / f"data-{number}").as_uri(),
                "dfs.datanode.hostname": _HOST,
                "dfs.datanode.address": address,
                "dfs.datanode.http.address": http,
                "dfs.datanode.ipc.address": ipc,
            }
            _write(self._conf(f"datanode-{number}"), common | data_node)

    def _conf(self, name: str) -> Path:
        return self._folder / "conf" / name

    def _command(self, name: str, main_class: str) -> list[str]:
        return [*self._java, "-cp", ":".join(map(str, [self._conf(name), *self._class_path])), main_class]

    def _format(self) -> None:
        command = [*self._command("namenode", _NAME_NODE), "-format", "-force", "-nonInteractive"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise HdfsError(f"HDFS can't be formatted in {self._folder}: {last_error(done.stdout)}")

    def _start(self, name: str, main_class: str) -> Child:
        self._starts += 1
        return Child(self._command(name, main_class), self._folder / f"{name}-{self._starts}.log")


def _write(folder: Path, properties: Mapping[str, str]) -> None:
    """A folder of configuration for the class path of a node."""
    folder.mkdir(parents=True)
    pairs = ((escape(key), escape(value)) for key, value in properties.items())
    lines = "\n".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in pairs)
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>\n{lines}\n</configuration>")
