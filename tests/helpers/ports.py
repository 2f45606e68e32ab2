"""Free ports on the loopback interface."""

import os
import random
import socket
import time
from contextlib import suppress

PORTS_OF_A_WORKER = 2000


def free_address():
    """Below the ports that systems choose by themselves, and of this worker of pytest: what is free now stays
    free until the test's processes listen there."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 10_000 + worker % 11 * PORTS_OF_A_WORKER
    while True:
        port = random.SystemRandom().randrange(first, first + PORTS_OF_A_WORKER)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return f"127.0.0.1:{port}"


def wait_for_listener(address, seconds=60):
    """Until something listens there; returns the address as host and port."""
    host, port = address.split(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return host, int(port)
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens at {address}"
            time.sleep(0.02)
