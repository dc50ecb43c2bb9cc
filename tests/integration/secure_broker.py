"""An embedded broker that is secured as a production cluster: TLS, SCRAM logins and access rights for each role."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)

from sluice.jvm.java import find_java
from sluice.kafka_io.client import TopicSettings
from sluice_demo.broker import Broker
from sluice_proxy.processes import free_ports
from tests.integration.job_process import TOPICS

_STORE_PASSWORD = "only-for-this-test"  # noqa: S105 # of a key store that only exists during the test


class SecureBroker:
    """A broker whose clients connect by SASL_SSL; the administrator has a separate plain listener."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "broker.pem"
        store = self._store = folder / "broker.p12"
        _make_certificate(store, self.certificate)
        client, admin, controller = free_ports(3)
        self.bootstrap_servers = f"127.0.0.1:{client}"
        self.admin_servers = f"127.0.0.1:{admin}"
        listeners = f"CLIENT://127.0.0.1:{client},ADMIN://127.0.0.1:{admin}"
        login = "listener.name.client."
        self._broker = Broker(
            folder / "data",
            properties={
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": listeners,
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listener.security.protocol.map": "CLIENT:SASL_SSL,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "ADMIN",
                f"{login}sasl.enabled.mechanisms": "SCRAM-SHA-512",
                f"{login}scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                f"{login}ssl.keystore.type": "PKCS12",
                f"{login}ssl.keystore.location": str(store),
                f"{login}ssl.keystore.password": _STORE_PASSWORD,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
            },
        )

    def start(self) -> None:
        """Start the broker and return when it serves."""
        self._broker.start()

    def stop(self) -> None:
        """End the broker."""
        self._broker.stop()

    def renew(self) -> None:
        """Start it again with another certificate, which only its new truststore trusts."""
        self.stop()
        self._store.unlink()
        _make_certificate(self._store, self.certificate)
        self.start()

    def let_in(self, topics: TopicSettings, passwords: Mapping[str, str]) -> None:
        """Create the topics and the users `job`, `gateway` and `auditor` with the rights of docs/security.md."""
        names = {name: getattr(topics, name) for name in TOPICS}
        with KafkaAdminClient(bootstrap_servers=self.admin_servers) as admin:
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1} for name in names.values()})
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, "SCRAM-SHA-512", password) for user, password in passwords.items()]
            )
            admin.create_acls([_right(user, operation, names[topic]) for user, topic, operation in TOPIC_RIGHTS])

    def let_read_quotas(self, user: str) -> None:
        """Give the right that `quotas.source: kafka` needs."""
        cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
        right = ACL(f"User:{user}", "*", ACLOperation.DESCRIBE_CONFIGS, ACLPermissionType.ALLOW, cluster)
        with KafkaAdminClient(bootstrap_servers=self.admin_servers) as admin:
            admin.create_acls([right])


TOPIC_RIGHTS = (
    ("job", "requests", ACLOperation.READ),
    ("job", "decisions", ACLOperation.WRITE),
    ("job", "decisions", ACLOperation.READ),
    ("job", "dead_letters", ACLOperation.WRITE),
    ("job", "dead_letters", ACLOperation.READ),
    ("job", "limits", ACLOperation.WRITE),
    ("job", "limits", ACLOperation.READ),
    ("job", "waits", ACLOperation.READ),
    ("job", "waits", ACLOperation.WRITE),
    ("job", "sums", ACLOperation.WRITE),
    ("gateway", "requests", ACLOperation.WRITE),
    ("gateway", "sums", ACLOperation.READ),
    ("gateway", "limits", ACLOperation.READ),
    ("gateway", "waits", ACLOperation.READ),
    ("auditor", "decisions", ACLOperation.READ),
    ("auditor", "dead_letters", ACLOperation.READ),
)
"""Reading and writing include Describe. No right on a group: Spark and the gateways assign partitions themselves."""


def _right(user: str, operation: ACLOperation, topic: str) -> ACL:
    return ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, topic))


def _make_certificate(store: Path, certificate: Path) -> None:
    """Create a key store and its self-signed certificate, which clients trust."""
    keytool = Path(find_java()[0]).with_name("keytool")
    secret = ["-keystore", str(store), "-storepass", _STORE_PASSWORD, "-alias", "broker"]
    generate = ["-genkeypair", "-storetype", "PKCS12", "-keyalg", "EC", "-dname", "CN=broker", "-validity", "30"]
    subprocess.run([keytool, *generate, "-ext", "san=ip:127.0.0.1", *secret], check=True, capture_output=True)
    subprocess.run(
        [keytool, "-exportcert", "-rfc", "-file", str(certificate), *secret], check=True, capture_output=True
    )
