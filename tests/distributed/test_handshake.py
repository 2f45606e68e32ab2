"""Two processes prove to each other that they hold the job's secret."""

import json
import socket
import threading
import time

import pytest

from cleanba.config.errors import UsageError
from cleanba.distributed.connection import Connection, NoMessage
from cleanba.distributed.handshake import VARIABLE, JobSecret, admit, introduce, make_secret

OURS = JobSecret(b"the secret of this job", "-.-")


@pytest.fixture
def pair():
    """The two ends of a connection: of process 0, and of the caller."""
    connections = [Connection(sock) for sock in socket.socketpair()]
    yield connections
    for connection in connections:
        connection.close()


def soon(seconds=5.0):
    return time.monotonic() + seconds


def shake_hands(pair, theirs, process=1):
    """What each side raises or returns: process 0, the caller."""
    results = {}

    def side(name, work):
        try:
            results[name] = work()
        except NoMessage as why:
            pair[name].close()
            results[name] = str(why)

    caller = threading.Thread(target=side, args=(1, lambda: introduce(pair[1], theirs, process, soon())))
    caller.start()
    side(0, lambda: admit(pair[0], OURS, soon()))
    caller.join()
    return results[0], results[1]


def test_holders_of_the_secret_recognize_each_other(pair):
    assert shake_hands(pair, OURS) == (1, None)


@pytest.mark.parametrize(
    "theirs", [JobSecret(b"another secret", "-.-"), JobSecret(b"", "-.-"), JobSecret(OURS.key, "77.0")]
)
def test_others_are_not_admitted_and_learn_nothing(pair, theirs):
    """Another secret, none, or that of another SLURM job at the same address."""
    admitted, introduced = shake_hands(pair, theirs)
    assert admitted == "it could not prove that it belongs to this job"
    assert introduced == "its connection closed unexpectedly"


def test_process_0_must_prove_itself_too(pair):
    """One who only sits at its port would otherwise be told all flags."""
    caller = []

    def introduced():
        with pytest.raises(NoMessage) as why:
            introduce(pair[1], OURS, 1, soon())
        caller.append(str(why.value))

    thread = threading.Thread(target=introduced)
    thread.start()
    pair[0].send(challenge="x")
    greeting = pair[0].read(soon())
    assert set(greeting) == {"process", "challenge", "proof"}
    pair[0].send(proof=greeting["proof"])  # reflected
    thread.join()
    assert caller == ["it could not prove that it belongs to this job"]


def test_a_greeting_is_worth_nothing_on_another_connection(pair):
    overheard = {"process": 1, "challenge": "b", "proof": OURS.proof("caller", 1, "a", "b")}
    pair[1].send(**overheard)
    with pytest.raises(NoMessage, match="could not prove"):
        admit(pair[0], OURS, soon())


@pytest.mark.parametrize("changed", [dict(process=2), dict(challenge="c"), dict(proof="é" * 64)])
def test_a_proof_holds_for_all_of_a_greeting(pair, changed):
    def answer():
        theirs = pair[1].read(soon())["challenge"]
        proof = OURS.proof("caller", 1, theirs, "b")
        pair[1].send(**{"process": 1, "challenge": "b", "proof": proof} | changed)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(NoMessage, match="could not prove"):
        admit(pair[0], OURS, soon())
    thread.join()


def test_a_greeting_has_one_deadline_for_all_of_it():
    """One byte at a time must not stretch it."""
    ours, theirs = socket.socketpair()
    stop = threading.Event()

    def dribble():
        while not stop.wait(0.05):
            theirs.send(b" ")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(NoMessage, match="it sent only part of a message in time"):
            admit(Connection(ours), OURS, soon(0.5))
    finally:
        stop.set()
        thread.join()
        ours.close()
        theirs.close()


def test_the_secret_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert JobSecret.from_environment().key == b""
    monkeypatch.setenv(VARIABLE, secret := make_secret())
    assert JobSecret.from_environment() == JobSecret(secret.encode(), "-.-")
    assert len(secret) == 64 and make_secret() != secret
    monkeypatch.setenv(VARIABLE, "hunter2")
    with pytest.raises(UsageError, match=f"{VARIABLE} is too short to be a secret; set {VARIABLE} to"):
        JobSecret.from_environment()


def test_the_secret_itself_is_never_sent(pair):
    sent = []
    send = Connection.send
    for connection in pair:
        connection.send = lambda connection=connection, **m: (
            sent.append(json.dumps(m)),
            send(connection, **m),
        )
    shake_hands(pair, OURS)
    assert len(sent) == 3 and not any(OURS.key.decode() in line for line in sent)
