"""The command: ./scripts/gateway --bootstrap-servers 127.0.0.1:9092"""

import argparse
import logging
import signal
import socket
import sys
from contextlib import suppress

import uvicorn
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from sluice import Gateway, GatewayOptions, WhenFull
from sluice_http.examples.http_gateway.app import KafkaService, create_app


def main() -> None:
    """Serve HTTP on 127.0.0.1 until Ctrl-C or SIGTERM. Print the address first."""
    parser = argparse.ArgumentParser(prog="gateway", description="An HTTP gateway in front of Kafka to try Sluice with")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT", help="Kafka's address")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default, takes a free one")
    parser.add_argument("--name", default="http-gateway", help="the field gateway of its events")
    arguments = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs every attempt during an outage
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kafka = {"bootstrap.servers": arguments.bootstrap_servers}
    options = GatewayOptions(name=arguments.name, when_full=WhenFull.DROP)  # BLOCK would block the event loop
    listener = socket.create_server(("127.0.0.1", arguments.port))
    with Gateway(kafka, options) as gateway:
        try:
            admin = KafkaAdminClient(bootstrap_servers=arguments.bootstrap_servers)
            producer = KafkaProducer(bootstrap_servers=arguments.bootstrap_servers, allow_auto_create_topics=False)
        except KafkaError as error:
            sys.exit(f"gateway: error: {error}; check that a broker runs there, and --bootstrap-servers")
        app = create_app(gateway, KafkaService(gateway, admin, producer))
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # uvicorn raises a signal again when the requests under way are answered
        main()
