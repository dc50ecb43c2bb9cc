"""JMX attributes of other Java processes, read through py4j, which comes with pyspark."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from sluice.jvm.java import find_java


def jmx_options(port: int) -> list[str]:
    """Options with which a Java process answers JMX on this port of loopback."""
    options = ("host=127.0.0.1", f"port={port}", f"rmi.port={port}", "authenticate=false", "ssl=false")
    return [
        *(f"-Dcom.sun.management.jmxremote.{option}" for option in options),
        "-Djava.rmi.server.hostname=127.0.0.1",
    ]


class Jvm:
    """A Java virtual machine for Python to call, with these jars, as a context manager. It ends with this process."""

    def __init__(self, jars: Sequence[Path] = ()) -> None:
        java, _ = find_java()
        port, secret = launch_gateway(
            java_path=java,
            classpath=":".join(map(str, jars)),
            javaopts=["-Xmx256m", "-XX:+UseSerialGC"],
            die_on_exit=True,
            enable_auth=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._gateway.shutdown()

    def array(self, kind: Any, values: Sequence[object]) -> Any:
        """A Java array."""
        array = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array

    @property
    def packages(self) -> Any:
        """Java's packages, such as `packages.java.util.HashMap`."""
        return self._gateway.jvm

    def beans(self, port: int) -> "Beans":
        """The beans of the process that answers on this port. Raises Py4JJavaError if none does."""
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
        remote = self.packages.javax.management.remote
        connector = remote.JMXConnectorFactory.connect(remote.JMXServiceURL(url))
        return Beans(self, connector.getMBeanServerConnection())

    def own_beans(self) -> "Beans":
        """The beans of this machine itself."""
        return Beans(self, self.packages.java.lang.management.ManagementFactory.getPlatformMBeanServer())


class Beans:
    """The beans of one process."""

    def __init__(self, jvm: Jvm, server: Any) -> None:
        self._jvm = jvm
        self._server = server
        of_name, of_query = "javax.management.ObjectName", "javax.management.QueryExp"
        self._query = self._method("queryNames", of_name, of_query)
        self._get = self._method("getAttribute", of_name, "java.lang.String")

    def read(self, pattern: str, attribute: str) -> dict[str, float]:
        """The attribute of every bean whose name fits the pattern; by name."""
        names = self._call(self._query, self._jvm.packages.javax.management.ObjectName(pattern), None)
        return {name.getCanonicalName(): float(self._call(self._get, name, attribute)) for name in names}

    def _method(self, name: str, *kinds: str) -> Any:
        """A method of the interface: the classes behind it aren't public, so py4j finds no methods in them."""
        lang = self._jvm.packages.java.lang
        parameters = self._jvm.array(lang.Class, [lang.Class.forName(kind) for kind in kinds])
        return lang.Class.forName("javax.management.MBeanServerConnection").getMethod(name, parameters)

    def _call(self, method: Any, *arguments: object) -> Any:
        return method.invoke(self._server, self._jvm.array(self._jvm.packages.java.lang.Object, arguments))
