"""Writes the lists of classes to archive: `python -m scripts.testbed.class_list`, after a change of Spark or the jars.

A job decides a small load twice, the second time with state to load, and writes tables. Its Java and that of the broker
tell what they load.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.demo.broker import Broker
from sluice.demo.jars import BROKER_CLASSES
from sluice.demo.job import Sections, SluiceJob, embedded_profile, storage_in, wait_until
from sluice.demo.load import loading
from sluice.demo.load_generator import TrafficOptions
from sluice.jvm.class_archive import SPARK_CLASSES, class_path, joined
from sluice.kafka_io.topics import ensure_topics

_RATE_PER_S = 200.0
_LONGEST_S = 180.0


def loaded_classes(folder: Path) -> tuple[str, str]:
    """Everything that Java loaded in a job, and in its broker, as Java lists it."""
    classes, broker_classes, loaded = folder / "classes.txt", folder / "broker-classes.txt", ""
    java = {
        "spark.driver.extraClassPath": joined(class_path()),
        "spark.driver.extraJavaOptions": f"-XX:DumpLoadedClassList={classes}",
    }
    # Neither Java takes classes from an archive of an earlier list.
    with Broker(folder / "broker", jvm_options=["-Xshare:off", f"-XX:DumpLoadedClassList={broker_classes}"]) as broker:
        own: Sections = {
            "kafka": {"bootstrap.servers": broker.bootstrap_servers},
            "audit": {"trigger_s": 1},
            "spark": java,
        }
        job = SluiceJob(folder, embedded_profile(), storage_in(folder), own)
        ensure_topics(job.settings.topics, job.settings.kafka)
        with loading(job.settings, TrafficOptions(), _RATE_PER_S):
            for _ in range(2):
                job.start()
                wait_until(lambda: {"enforce", "audit"} <= job.status().keys(), _LONGEST_S)
                job.stop()
                loaded += classes.read_text()
    return loaded, broker_classes.read_text()


if __name__ == "__main__":
    with TemporaryDirectory(prefix="sluice-classes-") as temporary:
        of_job, of_broker = loaded_classes(Path(temporary))
    SPARK_CLASSES.write_names(of_job)
    BROKER_CLASSES.write_names(of_broker)
