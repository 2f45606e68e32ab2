"""The model file of a run: where it is, and how a run without one gets one."""

from contextlib import suppress
from pathlib import Path

from cleanba.config.errors import UsageError
from cleanba.evaluation.hub import find_model
from cleanba.evaluation.model import SUFFIX
from cleanba.records.run_status import resume_command, run_status

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
    saved = dict[Path, float]()
    for path in folder.rglob(f"*{SUFFIX}"):
        with suppress(OSError):  # a link to nothing, or deleted since
            saved[path] = path.stat().st_mtime
    if not saved:
        raise UsageError(f"there is no run with a model in {folder}/; train with --save-model")
    return max(saved, key=saved.__getitem__)


def how_to_save_one(folder: Path) -> str:
    status = run_status(folder)
    if status.state == "running":
        return "it is still training, and saves one at the end if it was started with --save-model"
    if not status.can_resume:
        return "train with --save-model"
    command = f"`{resume_command(folder, status.record)} --save-model`"
    return f"{command} saves one" if status.state == "finished" else f"{command} continues it and saves one"
