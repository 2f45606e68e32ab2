"""Errors that commands report without a traceback of their own."""


class UsageError(Exception):
    """Something the user gave cannot work. One line that names the flag and the fix; exit code 2."""


class NotFinite(FloatingPointError):
    """A number is infinite or NaN. One line that names the first tensor with such a number; exit code 1."""

    exit_code = 1


class EnvError(Exception):
    """An environment failed, in a process of its own; exit code 1."""

    exit_code = 1

    def __init__(self, env_id: str, number: int, what: str, traceback: str = ""):
        super().__init__(env_id, number, what, traceback)
        self.env_id, self.number, self.what, self.traceback = env_id, number, what, traceback

    def numbered(self, number: int) -> "EnvError":
        """The same, by the environment's number among all of the run."""
        return EnvError(self.env_id, number, self.what, self.traceback)

    def __str__(self) -> str:
        line = f"environment {self.number} of {self.env_id} {self.what}"
        return f"{line}\n{self.traceback}".rstrip()
