"""The model file of a run: where it is, and how a run without one gets one."""

from pathlib import Path

from cleanba.config.errors import UsageError
from cleanba.evaluation.hub import find_model
from cleanba.evaluation.model import SUFFIX
from cleanba.records.run_status import resume_command, run_status
from cleanba.runtime.files import last_written

LATEST = "latest"
RUNS = Path("runs")


def find_run_model(name: str) -> Path:
    """As `find_model` does; `latest` is the model below runs/ that was saved last."""
    path = Path(name)
    if name == LATEST and not path.exists():
        return latest_model(RUNS)
    if path.is_dir() and not any(path.glob(f"*{SUFFIX}")):
        raise UsageError(f"{name} has no model; {how_to_save_one(path)}")
    return find_model(name)


def latest_model(folder: Path) -> Path:
    models = sorted(folder.rglob(f"*{SUFFIX}"), key=lambda path: last_written([path]))
    if not models:
        raise UsageError(f"there is no run with a model in {folder}/; train with --save-model")
    return models[-1]


def how_to_save_one(folder: Path) -> str:
    status = run_status(folder)
    if status.state == "running":
        return "it is still training, and saves one at the end if it was started with --save-model"
    if not status.can_resume:
        return "train with --save-model"
    command = f"`{resume_command(folder, status.record)} --save-model`"
    return f"{command} saves one" if status.state == "finished" else f"{command} continues it and saves one"
