"""JMX attributes of other Java processes, read through py4j, which comes with pyspark."""

import atexit
from contextlib import closing
from functools import cache
from typing import Any

from sluice_toolbox.machine import Jvm


def read_beans(port: int, pattern: str, attribute: str) -> dict[str, float]:
    """Read an attribute, as `Beans.read` does, of the process on this port. All reads share one Java."""
    jvm = _own_jvm()
    with closing(_connector(jvm, port)) as connector:
        return Beans(jvm, connector.getMBeanServerConnection()).read(pattern, attribute)


@cache
def _own_jvm() -> Jvm:
    jvm = Jvm()
    atexit.register(jvm.__exit__)
    return jvm


def beans(jvm: Jvm, port: int) -> "Beans":
    """The beans of the process that answers on this port. Raises Py4JJavaError if none does."""
    return Beans(jvm, _connector(jvm, port).getMBeanServerConnection())


def _connector(jvm: Jvm, port: int) -> Any:
    remote = jvm.packages.javax.management.remote
    url = remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi")
    return remote.JMXConnectorFactory.connect(url)


def own_beans(jvm: Jvm) -> "Beans":
    """The beans of this machine itself."""
    return Beans(jvm, jvm.packages.java.lang.management.ManagementFactory.getPlatformMBeanServer())


class Beans:
    """The beans of one process."""

    def __init__(self, jvm: Jvm, server: Any) -> None:
        self._jvm, self._server = jvm, server

    def read(self, pattern: str, attribute: str) -> dict[str, float]:
        """The attribute of every bean whose name fits the pattern; by name."""
        of_name = "javax.management.ObjectName"
        name = self._jvm.packages.javax.management.ObjectName(pattern)
        names = self._call("queryNames", (of_name, name), ("javax.management.QueryExp", None))
        get = ("java.lang.String", attribute)
        return {name.getCanonicalName(): float(self._call("getAttribute", (of_name, name), get)) for name in names}

    def _call(self, name: str, *arguments: tuple[str, object]) -> Any:
        """Call by reflection: the classes behind the interface aren't public, so py4j finds no methods in them."""
        lang = self._jvm.packages.java.lang
        kinds = self._jvm.array(lang.Class, [lang.Class.forName(kind) for kind, _ in arguments])
        method = lang.Class.forName("javax.management.MBeanServerConnection").getMethod(name, kinds)
        return method.invoke(self._server, self._jvm.array(lang.Object, [value for _, value in arguments]))
