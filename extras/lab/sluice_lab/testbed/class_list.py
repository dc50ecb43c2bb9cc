"""Writes the lists of classes to archive: `python -m sluice_lab.testbed.class_list`, after a change of Spark or jars.

A job decides a small load twice, the second time with state to load, and writes tables. A proxy carries the load. Their
Java and that of the broker tell what they load.
"""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.configs.settings import with_bootstrap_servers
from sluice.jvm.class_archive import SPARK_CLASSES, class_path, joined
from sluice.kafka_io.topics import ensure_topics
from sluice_demo.broker import Broker
from sluice_demo.jars import BROKER_CLASSES
from sluice_demo.job import Sections, SluiceJob, embedded_profile, storage_in, wait_until
from sluice_demo.load import loading
from sluice_demo.load_generator import TrafficOptions
from sluice_proxy.gateway import KafkaGateway
from sluice_proxy.jars import PROXY_CLASSES

_RATE_PER_S = 200.0
_LONGEST_S = 180.0


def loaded_classes(folder: Path) -> tuple[str, str, str]:
    """Everything that Java loaded in a job, in its broker and in a proxy, as Java lists it."""
    classes, loaded = folder / "classes.txt", ""
    broker_classes, proxy_classes = folder / "broker-classes.txt", folder / "proxy-classes.txt"
    java = {
        "spark.driver.extraClassPath": joined(class_path()),
        "spark.driver.extraJavaOptions": f"-XX:DumpLoadedClassList={classes}",
    }
    # No Java takes classes from an archive of an earlier list.
    of_broker, of_proxy = (
        ["-Xshare:off", f"-XX:DumpLoadedClassList={file}"] for file in (broker_classes, proxy_classes)
    )
    with Broker(folder / "broker", jvm_options=of_broker) as broker:
        own: Sections = {
            "kafka": {"bootstrap.servers": broker.bootstrap_servers},
            "audit": {"trigger_s": 1},
            "spark": java,
        }
        job = SluiceJob(folder, embedded_profile(), storage_in(folder), own)
        ensure_topics(job.settings.topics, job.settings.kafka)
        with KafkaGateway(folder / "proxy", job.settings, jvm_options=of_proxy) as proxy:
            through_proxy = with_bootstrap_servers(job.settings, proxy.bootstrap_servers)
            with loading(through_proxy, TrafficOptions(), _RATE_PER_S):
                for _ in range(2):
                    job.start()
                    wait_until(lambda: {"enforce", "audit"} <= job.status().keys(), _LONGEST_S)
                    job.stop()
                    loaded += classes.read_text()
    return loaded, broker_classes.read_text(), proxy_classes.read_text()


def class_names(loaded: str) -> str:
    """The names from what Java writes with `-XX:DumpLoadedClassList`: sorted, one a line, and without numbers.

    Left out are proxies, which Java names as it likes; species of bound methods, on which Java 17 crashes under a
    recorder or an agent; and what no archive has: Sluice's own classes, and those of signed jars (janino's).
    """
    of_jars = ("sluice/", "org/codehaus/janino/", "org/codehaus/commons/compiler/")
    left_out = ("/$Proxy", "BoundMethodHandle$Species_", *of_jars)
    lines = [line.partition(" id: ")[0] for line in loaded.splitlines() if line[:1] != "#"]
    return "".join(f"{line}\n" for line in sorted({*lines}) if not any(name in line for name in left_out))


if __name__ == "__main__":
    with TemporaryDirectory(prefix="sluice-classes-") as temporary:
        found = loaded_classes(Path(temporary))
    for classes, loaded in zip((SPARK_CLASSES, BROKER_CLASSES, PROXY_CLASSES), found, strict=True):
        classes.names.write_bytes(gzip.compress(class_names(loaded).encode(), mtime=0))
