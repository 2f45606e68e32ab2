"""The tables of docs/training.md list what a run writes: no key more, none less."""

import re

import pytest
from helpers.runs import REPO, read_args

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.envs.episodes import Episode
from cleanba.evaluation.evaluate import Evaluation


def documented(section):
    """The names in the first column of the tables of this section."""
    page = (REPO / "docs/training.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(.+?)`", cell)]


@pytest.fixture
def runs(run):
    small = dict(total_timesteps=640, save_model=True)
    return [run(algorithm=algorithm, **small) for algorithm in (cleanba_ppo, cleanba_impala)]


def test_the_documentation_lists_every_key_that_a_run_writes(runs):
    written = {key for _, rows in runs for row in rows for key in row}
    in_atari = Evaluation("Pong-v5", 1, [Episode(1.0, 1)]).scores()
    keys = documented("What a row holds")
    assert sorted(keys) == sorted(written | {f"eval/{name}" for name in in_atari})
    sections = documented("What args.json holds")
    assert sorted(sections) == sorted(read_args(runs[0][0].run_dir))
