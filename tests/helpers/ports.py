"""Free ports on the loopback interface."""

import socket
import time


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


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
