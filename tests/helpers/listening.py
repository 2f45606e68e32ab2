"""Process 0's listener in a thread of the test."""

import threading
import time
from contextlib import contextmanager

from cleanba.distributed.listener import Listener
from helpers.ports import free_address


@contextmanager
def listening(secret):
    """Its address, as host and port, and a list that grows by the callers it admits."""
    host, port = free_address().split(":")
    address, admitted, done = (host, int(port)), [], threading.Event()

    def listen():
        while not done.is_set():
            admitted.extend(listener.callers(time.monotonic() + 0.2))

    with Listener(*address, secret) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield address, admitted
        finally:
            done.set()
            thread.join()
            for caller in admitted:
                caller.connection.close()
