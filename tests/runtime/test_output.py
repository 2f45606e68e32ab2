"""Output beside the work: it makes nobody wait, whoever reads it."""

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from helpers.full_disk import open_full
from helpers.runs import run_python

from cleanba.runtime import output
from cleanba.runtime.output import GAP, MAX_WAITING_BYTES, BackgroundStream, background_output

LINE = "x" * 1023 + "\n"


@pytest.fixture
def pipe():
    """A stream into a pipe, and the descriptor of its other end."""
    reading, writing = os.pipe()
    with open(writing, "w") as file:
        yield BackgroundStream(file), reading
        with suppress(OSError):
            os.close(reading)


def test_what_is_written_arrives_in_order(pipe):
    stream, reading = pipe
    lines = [f"line {i}\n" for i in range(1000)]
    for line in lines:
        assert stream.write(line) == len(line)
    stream.drain()
    assert os.read(reading, 2**16).decode() == "".join(lines)


def test_all_ways_to_write_keep_the_order(pipe):
    stream, reading = pipe
    print("printed", file=stream)
    stream.writelines(["several\n", "lines\n"])
    stream.drain()
    assert os.read(reading, 100) == b"printed\nseveral\nlines\n"


def test_lines_of_several_processes_are_not_mixed(pipe):
    stream, reading = pipe
    other = BackgroundStream(stream)
    stream.write("in two ")
    other.write("of another\n")
    other.drain()
    stream.write("parts\n")
    stream.write("without an end")
    stream.flush()
    stream.drain()
    assert os.read(reading, 100) == b"of another\nin two parts\nwithout an end"


FORK = """
import os, sys, threading
from cleanba.runtime.output import BackgroundStream

stream = BackgroundStream(sys.stdout)
locked = threading.Event()

def hold():
    with stream._changed:
        locked.set()
        threading.Event().wait()

stream.write("before ")
threading.Thread(target=hold, daemon=True).start()
locked.wait()
if copy := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))
for end in ("", "\\n"):
    stream.write("of the copy" + end)
    stream.flush()
    stream.drain()
os._exit(7)
"""


def test_a_copy_made_by_a_fork_writes_without_the_lock_and_the_thread(tmp_path):
    """Another thread may have had the lock. What was waiting is not the copy's to write."""
    command = run_python(tmp_path, "-c", FORK, timeout=30)
    assert (command.returncode, command.stdout) == (7, "of the copyof the copy\n")


def test_without_a_reader_nothing_waits_and_the_gap_is_marked(pipe, monkeypatch):
    monkeypatch.setattr(output, "PATIENCE_SECONDS", 0.05)
    stream, reading = pipe
    for _ in range(2 * MAX_WAITING_BYTES // len(LINE)):
        stream.write(LINE)
    stream.drain()  # gives up
    received = []

    def read():
        while not received or not received[-1].endswith(b"the end\n"):
            received.append(os.read(reading, 2**16))

    thread = threading.Thread(target=read)
    thread.start()
    monkeypatch.setattr(output, "PATIENCE_SECONDS", 10)
    stream.drain()
    stream.write("the end\n")
    thread.join(10)
    text = b"".join(received).decode()
    assert text.endswith(f"{LINE}{GAP}the end\n") and len(text) < 1.5 * MAX_WAITING_BYTES


def test_a_reader_that_has_gone_is_an_error_for_the_writer(pipe):
    """As without the thread: rich ends the command then."""
    stream, reading = pipe
    os.close(reading)
    stream.write("lost\n")
    stream.drain()
    with pytest.raises(BrokenPipeError):
        stream.write("more\n")


def test_a_reader_of_what_is_only_beside_the_work_may_go(pipe):
    stream, reading = pipe
    stream = BackgroundStream(stream, needs_reader=False)
    os.close(reading)
    for _ in range(3):
        stream.write("lost\n")
        stream.drain()


def test_a_full_disk_is_no_error():
    with open_full() as full:
        stream = BackgroundStream(full)
        for _ in range(3):
            stream.write("lost\n")
            stream.drain()


def test_streams_in_memory_stay_as_they_are(capsys):
    before = sys.stdout
    with background_output():
        assert sys.stdout is before
        print("shown")
    assert capsys.readouterr().out == "shown\n"


def test_everything_is_written_at_the_end(capfd):
    with background_output():
        threads = [threading.Thread(target=lambda: [print("line") for _ in range(500)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert capfd.readouterr().out.count("line") == 1000


CLI = "from cleanba.cli import main; main()"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_read_enough_of_the_help_gets_no_traceback(tmp_path, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    command = subprocess.run(
        [sys.executable, "-c", CLI, "--help"], stdout=writing, stderr=subprocess.PIPE, env=env
    )
    os.close(writing)
    assert command.stderr == b""


def test_closed_outputs_are_no_failure(tmp_path):
    script = (
        "import os; os.close(1); os.close(2); x = os.sys.executable; os.execv(x, [x, '-c', os.sys.argv[1]])"
    )
    work = (
        "from cleanba.runtime.command import command\n"
        "with command(resumable=True) as console: console.print('x'); open('done', 'w').close()"
    )
    assert run_python(tmp_path, "-c", script, work).returncode == 0
    assert (tmp_path / "done").exists()


def test_a_deleted_working_directory_is_one_line(tmp_path):
    script = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
    command = run_python(tmp_path, "-c", script + "import cleanba.cleanba_ppo")
    assert command.returncode == 2
    assert command.stderr == "error: the working directory was deleted; change to one that exists\n"
