"""An environment of the fault suite, in Python. It goes wrong when a file tells it to."""

import os
import signal
import time
from pathlib import Path

import gymnasium

from helpers.own_envs import Cue

FOLDER = Path(os.environ.get("CLEANBA_FAULT_ROUND", "."))
ORDER, DONE = FOLDER / "env-fault", FOLDER / "fault"


class GoesWrong(Cue):
    """As `env-fault` says, in the first environment that sees it."""

    def step(self, action):
        if ORDER.exists():
            self.go_wrong()
        return super().step(action)

    def go_wrong(self):
        try:
            ORDER.rename(DONE)
        except FileNotFoundError:  # another environment was first
            return
        match DONE.read_text():
            case "raises":
                raise ValueError("a bad step")
            case "hangs":
                time.sleep(1000)
            case "is killed":
                os.kill(os.getpid(), signal.SIGKILL)


gymnasium.register("GoesWrong-v0", entry_point=f"{__name__}:GoesWrong")
