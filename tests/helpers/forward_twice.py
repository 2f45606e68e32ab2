"""A wrapper that passes each signal on twice: `python forward_twice.py COMMAND…`. Some launchers do, on top
of the one that the terminal has sent to the whole group."""

import signal
import subprocess
import sys

if __name__ == "__main__":
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    child = subprocess.Popen(sys.argv[1:])
    while True:
        try:
            code = child.wait(0.01)
            break
        except subprocess.TimeoutExpired:
            while received:
                number = received.pop()
                child.send_signal(number)
                child.send_signal(number)
    sys.exit(code if code >= 0 else 128 - code)
