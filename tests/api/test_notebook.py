"""The notebook of examples/, and what a training shows in a notebook."""

import json
import os
import signal
import threading
import time

import nbformat
import pytest
from helpers.runs import REPO
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = REPO / "examples/first_steps.ipynb"
SMALL = """
import cleanba
FLAGS = dict(env_id="CartPole-v1", local_num_envs=4, num_actor_threads=1, num_steps=16, hiddens=[16])
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Executes notebooks in an empty folder, with a kernel of this Python."""
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))

    def client(notebook):
        where = {"metadata": {"path": str(tmp_path)}}
        return NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where)

    return client


def cells(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def outputs(notebook, cell):
    return notebook.cells[cell].outputs


def test_it_is_kept_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None


@pytest.mark.slow
def test_the_notebook_runs_and_learns(client):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client(notebook).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    images = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
    texts = [o.text for cell in code for o in cell.outputs if o.output_type == "stream"]
    assert len(images) == 2 and not [o for c in code for o in c.outputs if o.get("name") == "stderr"]
    returned = next(float(text.split()[1]) for text in texts if text.startswith("return "))
    assert returned > 100 and any(text.startswith("20 episodes of CartPole-v1") for text in texts)


def test_a_training_shows_one_view_that_changes(client):
    notebook = cells(SMALL, 'cleanba.train("ppo", **FLAGS, total_timesteps=5 * 64)')
    client(notebook).execute()
    view, summary, result = outputs(notebook, 1)
    assert view.output_type == "display_data" and "update" in view.data["text/html"]
    assert "5 of 5" in view.data["text/html"] and "<pre" in view.data["text/html"]
    assert summary.text.startswith("done: 320 steps") and result.data["text/plain"].startswith("Training(fin")


def test_interrupting_the_kernel_saves_a_checkpoint(client, tmp_path):
    """And again at once, as impatient people do: the kernel lives on."""
    notebook = cells(SMALL, 'cleanba.train("ppo", **FLAGS)', 'print(cleanba.runs("runs")[0].resume, 6 * 7)')
    executing = client(notebook)

    def interrupt():
        pid = executing.km.provisioner.pid
        for _ in range(2):
            os.kill(pid, signal.SIGINT)
            time.sleep(1)

    def wait():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not any(
            file.stat().st_size for file in tmp_path.glob("runs/*/metrics.jsonl")
        ):
            time.sleep(0.1)
        interrupt()

    waiting = threading.Thread(target=wait)
    with executing.setup_kernel():
        waiting.start()
        executing.execute_cell(notebook.cells[0], 0)
        with pytest.raises(CellExecutionError, match="stopped by SIGINT after update"):
            executing.execute_cell(notebook.cells[1], 1)
        waiting.join()
        executing.execute_cell(notebook.cells[2], 2)
    text = outputs(notebook, 2)[0].text
    assert text.startswith("cleanba ppo --resume runs/CartPole-v1__") and text.endswith(" 42\n")
