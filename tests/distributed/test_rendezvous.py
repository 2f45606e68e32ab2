"""How the processes of a job connect, and what happens when they cannot."""

import re
import signal
import socket
import time

import pytest
from helpers.jobs import SMALL, exit_codes, outputs
from helpers.ports import free_address

from cleanba.distributed.process_info import ProcessInfo
from cleanba.distributed.rendezvous import mismatch


def test_a_process_waits_for_process_0_for_join_seconds(start):
    job = start(2, *SMALL, "--join-seconds", 1)
    job[0].popen.kill()
    assert job[1].exit_code() == 3
    assert re.search(r"error: process 0 did not answer at 127.0.0.1:\d+ within 1 s", job[1].output)
    assert "Traceback" not in job[1].output


def test_process_0_waits_for_the_others_for_join_seconds(start):
    job = start(2, *SMALL, "--join-seconds", 2)
    job[1].popen.kill()
    assert job[0].exit_code() == 3
    assert re.search(r"error: process 1 did not connect to 127.0.0.1:\d+ within 2 s", job[0].output)


def test_processes_with_different_flags_are_refused(start, tmp_path):
    job = start(2, *SMALL, flags=[["--seed", "1"], ["--seed", "2"]])
    for process in job:
        assert process.exit_code() == 2
        assert "--seed is 2 in process 1 and 1 in process 0" in process.output
        assert "Traceback" not in process.output
    assert not (tmp_path / "runs").exists()


def test_different_code_or_layouts_and_wrong_ranks_are_refused():
    info, about = ProcessInfo("host:1", 3, 0), {"code": "a", "layout": "a0-l0-d3"}

    def why(process, connections=None, **changed):
        return mismatch(info, about, process, about | changed, connections or {})

    assert why(1) == ""
    assert "code is 'b' in process 2 and 'a' in process 0" in why(2, code="b")
    assert "layout is 'a0-l1-d3' in process 1" in why(1, layout="a0-l1-d3")
    assert "a second or unknown process 1 of 3 connected to host:1" in why(1, connections={1: None})
    assert "process 3 of 3" in why(3)


@pytest.mark.slow
def test_strangers_at_the_port_are_ignored(start):
    """One that sends no message, a process of another job, and one that sends nothing."""
    host, port = (address := free_address()).split(":")
    job = start(2, *SMALL, "--total-timesteps", 256, JAX_COORDINATOR_ADDRESS=address)
    job[1].popen.send_signal(signal.SIGSTOP)
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            strangers = [socket.create_connection((host, int(port)), timeout=1) for _ in range(3)]
            break
        except OSError:
            time.sleep(0.1)
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b'{"job": "another", "process": 1, "who": "", "about": {}}\n')
    job[1].popen.send_signal(signal.SIGCONT)
    assert exit_codes(job) == [0, 0], outputs(job)
    for stranger in strangers:
        stranger.close()


DYING = """
import os, sys
from cleanba import cleanba_ppo
from cleanba.distributed import rendezvous as module

rendezvous = module.rendezvous

def connect_and_die(*inputs):
    connected = rendezvous(*inputs)
    if os.environ["JAX_PROCESS_ID"] == "1":
        os.kill(os.getpid(), 9)
    return connected

module.rendezvous = connect_and_die
cleanba_ppo.main(argv=sys.argv[1:])
"""


@pytest.mark.slow
def test_a_process_that_dies_right_after_connecting_is_named(start):
    job = start(3, *SMALL, "--join-seconds", 20, script=DYING)
    assert exit_codes(job, 15)[1:] == [-9, 3], outputs(job)
    assert re.search(r"error: process 1 \(pid \d+ on .*\) was lost", job[0].output)
