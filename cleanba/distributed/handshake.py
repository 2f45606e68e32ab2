"""How two processes prove to each other that they hold the job's secret, before they say anything else.

Process 0 sends a challenge. The caller answers it, with a challenge of its own, which process 0 answers. An
answer is an HMAC over both challenges: it does not uncover the secret, and is worthless on other connections.
"""

import hashlib
import hmac
import json
import os
import secrets
from typing import NamedTuple

from cleanba.config.errors import UsageError
from cleanba.distributed.connection import Connection, NoMessage

VARIABLE = "CLEANBA_JOB_SECRET"
HOW_TO_SET = f"set {VARIABLE} to the same random text in all processes, e.g. of `openssl rand -hex 32`"
MIN_CHARACTERS = 16  # whoever has seen a handshake can try out secrets at leisure
MAX_GREETING_BYTES = 512  # for one who has proved nothing
GREETING_SECONDS = 10.0  # for the whole handshake; honest processes need milliseconds


class JobSecret(NamedTuple):
    """What the processes of one job share, and no others."""

    key: bytes  # empty: anybody can prove to be one of them
    tag: str  # distinguishes jobs that happen to use the same address

    @staticmethod
    def from_environment() -> "JobSecret":
        key = os.environ.get(VARIABLE, "")
        if 0 < len(key) < MIN_CHARACTERS:
            raise UsageError(f"{VARIABLE} is too short to be a secret; {HOW_TO_SET}")
        tag = ".".join(os.environ.get(name, "-") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        return JobSecret(os.fsencode(key), tag)

    def proof(self, side: str, process: int, *challenges: str) -> str:
        """Each side has its own proofs: neither can be answered with what it has sent itself."""
        text = json.dumps([self.tag, side, process, *challenges])
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def make_secret() -> str:
    return secrets.token_hex(32)


def admit(connection: Connection, secret: JobSecret, until: float) -> int:
    """In process 0: which process has called. A caller that cannot prove it learns nothing."""
    ours = secrets.token_hex(16)
    connection.send(challenge=ours)
    match connection.read(until, MAX_GREETING_BYTES):
        case {"process": int(process), "challenge": str(theirs), "proof": str(proof)}:
            if not _same(proof, secret.proof("caller", process, ours, theirs)):
                raise NoMessage("it could not prove that it belongs to this job")
        case _:
            raise NoMessage("it sent something that is not a greeting")
    connection.send(proof=secret.proof("process 0", process, ours, theirs))
    return process


def introduce(connection: Connection, secret: JobSecret, process: int, until: float) -> None:
    """In the others: prove which process this is; returns once the other side has proved to be process 0."""
    ours = secrets.token_hex(16)
    match connection.read(until, MAX_GREETING_BYTES):
        case {"challenge": str(theirs)}:
            proof = secret.proof("caller", process, theirs, ours)
            connection.send(process=process, challenge=ours, proof=proof)
        case _:
            raise NoMessage("it sent something that is not a challenge")
    match connection.read(until, MAX_GREETING_BYTES):
        case {"proof": str(proof)} if _same(proof, secret.proof("process 0", process, theirs, ours)):
            return
        case _:
            raise NoMessage("it could not prove that it belongs to this job")


def _same(proof: str, expected: str) -> bool:
    return hmac.compare_digest(proof.encode(errors="replace"), expected.encode())
