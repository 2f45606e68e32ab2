"""Weights & Biases."""

import threading
from pathlib import Path
from typing import Any

from cleanba.config.errors import UsageError
from cleanba.records.row import Row, charts, is_logged
from cleanba.runtime.messages import first_line, say


class WeightsAndBiases:
    """Logs the same rows as TensorBoard. If the service fails, the run continues and everything is kept in
    the run folder. A resumed run keeps its `run_id`; what was sent before is not sent again."""

    START_SECONDS, END_SECONDS, EARLY_EXIT_SECONDS = 30, 60, 0.5  # how long to wait for the service

    def __init__(
        self,
        folder: Path,
        frequency: int,
        updates: int,
        *,
        project: str,
        entity: str | None,
        config: dict[str, Any],
        run_id: str | None = None,
        logged_until: int = 0,
    ):
        """`logged_until` is the last step that was logged before resuming."""
        import wandb  # an extra

        self._wandb: Any = wandb
        self._frequency = frequency
        self._updates = updates
        settings = dict(silent=True, console="off", init_timeout=self.START_SECONDS)
        options: dict[str, Any] = dict(project=project, entity=entity, config=config, settings=settings)
        options |= dict(name=folder.name, dir=str(folder), reinit="finish_previous")
        options |= dict(id=run_id, resume="allow" if run_id else None)
        try:
            self._run: Any = wandb.init(**options)
        except Exception as error:
            self._say(f"cannot be reached ({first_line(error)})")
            settings |= dict(init_timeout=self.END_SECONDS)  # no service is asked, but a machine may be busy
            self._run = wandb.init(**options, mode="offline")
        # The service knows what it has. Offline, the files of the earlier parts hold everything logged.
        self._sent = logged_until if self._run.offline else self._run.starting_step - 1

    @property
    def run_id(self) -> str:
        return self._run.id

    @property
    def where(self) -> str:
        if self._run.disabled:
            return "nowhere: WANDB_MODE=disabled"
        if self._run.offline:
            return f"offline: `wandb sync {Path(self._run.dir).parent}` uploads it"
        return f"at {self._run.url}"

    def write(self, row: Row) -> None:
        if self._run is None or not row or not is_logged(row, self._frequency, self._updates):
            return
        if row["global_step"] <= self._sent and "update" in row:
            return
        step = row["global_step"] if "update" in row else None  # the evaluation gets the next one
        try:
            self._wandb.log(charts(row), step=step, commit=True)
        except Exception as error:
            self._say(f"failed ({first_line(error)})")
            self._run = None

    def close(self, exit_code: int = 0) -> None:
        """What is not sent in time is kept in the run folder."""
        finishing = threading.Thread(target=self._finish, args=(exit_code,), daemon=True)
        finishing.start()
        finishing.join(self.EARLY_EXIT_SECONDS if exit_code else self.END_SECONDS)

    def __enter__(self) -> "WeightsAndBiases":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.close(0 if kind is None else 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def _finish(self, exit_code: int) -> None:
        try:
            self._wandb.finish(exit_code=exit_code)
        except Exception as error:
            self._say(f"failed ({first_line(error)})")

    def _say(self, what: str) -> None:
        say(f"Weights & Biases {what}; the run continues and keeps everything locally")


def check_key() -> None:
    """Before a run: without an API key it would have nowhere to log to."""
    import wandb  # an extra

    if wandb.setup().settings.mode != "online":
        return
    try:
        wandb.login()
    except wandb.errors.Error as error:
        # The same class is raised for a malformed key and for a service that does not answer.
        if isinstance(error, wandb.errors.UsageError) or "invalid" in str(error):
            raise UsageError(f"--track: {first_line(error)} Or set WANDB_MODE=offline") from error
