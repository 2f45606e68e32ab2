"""Files of earlier versions: data/old_run was written by commit c3dfd4f, before the packages were split up.

`cleanba ppo --env-id Breakout-v5 --local-num-envs 4 --num-actor-threads 1 --num-steps 8 --total-timesteps 64
--channels 1 1 1 --hiddens 4 --num-minibatches 2 --update-epochs 1 --exp-name fixture --save-model`
"""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.resuming import saved_by_ppo
from safetensors import safe_open

from cleanba import cleanba_ppo
from cleanba.config.flags import with_tuples
from cleanba.envs.spec import ActionSpec, ArraySpec
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model, probe, save_model
from cleanba.records.checkpoint import load_checkpoint, save_checkpoint
from cleanba.records.digests import digest, params_sums
from cleanba.records.run_folder import is_finished, read_record, read_rows

OLD_RUN = Path(__file__).parent / "data/old_run"
MODEL = OLD_RUN / "fixture.cleanrl_model"
CHECKPOINT = OLD_RUN / "checkpoints/update-2.safetensors"

# Names of Flax modules and NamedTuple fields are keys in files: renaming one breaks all older files.
KERNEL = ("F32", (3, 3, 1, 1))
PARAMS = {
    "params/Dense_0/bias": ("F32", (4,)),
    "params/Dense_0/kernel": ("F32", (121, 4)),
    "params/Dense_1/bias": ("F32", (18,)),
    "params/Dense_1/kernel": ("F32", (4, 18)),
    "params/Dense_2/bias": ("F32", (1,)),
    "params/Dense_2/kernel": ("F32", (4, 1)),
    "params/torso/Conv_0/bias": ("F32", (1,)),
    "params/torso/Conv_0/kernel": ("F32", (3, 3, 4, 1)),
    "params/torso/Conv_1/bias": ("F32", (1,)),
    "params/torso/Conv_1/kernel": KERNEL,
    "params/torso/Conv_2/bias": ("F32", (1,)),
    "params/torso/Conv_2/kernel": KERNEL,
    "params/torso/Conv_3/bias": ("F32", (1,)),
    "params/torso/Conv_3/kernel": KERNEL,
    "params/torso/Conv_4/bias": ("F32", (1,)),
    "params/torso/Conv_4/kernel": KERNEL,
    "params/torso/Conv_5/bias": ("F32", (1,)),
    "params/torso/Conv_5/kernel": KERNEL,
    "params/torso/Conv_6/bias": ("F32", (1,)),
    "params/torso/Conv_6/kernel": KERNEL,
    "params/torso/Conv_7/bias": ("F32", (1,)),
    "params/torso/Conv_7/kernel": KERNEL,
    "params/torso/Conv_8/bias": ("F32", (1,)),
    "params/torso/Conv_8/kernel": KERNEL,
    "params/torso/Conv_9/bias": ("F32", (1,)),
    "params/torso/Conv_9/kernel": KERNEL,
    "params/torso/Conv_10/bias": ("F32", (1,)),
    "params/torso/Conv_10/kernel": KERNEL,
    "params/torso/Conv_11/bias": ("F32", (1,)),
    "params/torso/Conv_11/kernel": KERNEL,
    "params/torso/Conv_12/bias": ("F32", (1,)),
    "params/torso/Conv_12/kernel": KERNEL,
    "params/torso/Conv_13/bias": ("F32", (1,)),
    "params/torso/Conv_13/kernel": KERNEL,
    "params/torso/Conv_14/bias": ("F32", (1,)),
    "params/torso/Conv_14/kernel": KERNEL,
}
SAVED = {
    "key": ("U32", (2,)),
    "state/opt_state/1/count": ("I32", ()),
    **{f"state/params/{name}": tensor for name, tensor in PARAMS.items()},
    **{f"state/opt_state/1/mu/{name}": tensor for name, tensor in PARAMS.items()},
    **{f"state/opt_state/1/nu/{name}": tensor for name, tensor in PARAMS.items()},
}
MODEL_METADATA = {"format", "args", "env", "steps"}
CHECKPOINT_METADATA = {"format", "about", "header_digest", "digest"}


def tensors_and_metadata(path):
    with safe_open(path, framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        tensors = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
        return tensors, file.metadata()


def saved_today():
    """Shapes and dtypes that this version saves with the old run's arguments."""
    return saved_by_ppo(cleanba_ppo.Args(**with_tuples(read_record(OLD_RUN)["args"])))


def load_old_checkpoint():
    return load_checkpoint(CHECKPOINT, saved_today())


def zeros(template):
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)


def test_an_old_model_loads_and_evaluates():
    assert tensors_and_metadata(MODEL)[0] == PARAMS
    model = load_model(MODEL)
    assert model.steps == 64 and model.args.exp_name == "fixture"
    assert model.env.env_id == "Breakout-v5" and model.env.backend == "envpool"
    assert model.env.obs == ArraySpec((4, 84, 84), np.dtype(np.uint8), stack=4)
    assert model.env.action == ActionSpec("discrete", n=18)
    assert model.algorithm_name == "ppo" and model.args.update_epochs == 1
    assert all(np.isfinite(x).all() for x in probe(model))
    (episode,) = evaluate(model, episodes=1, seed=1).episodes
    assert episode.length > 0


def test_a_new_model_has_the_tensors_and_metadata_of_an_old_one(tmp_path):
    save_model(tmp_path / "new", load_model(MODEL))
    tensors, metadata = tensors_and_metadata(tmp_path / "new")
    assert tensors == PARAMS and metadata.keys() == MODEL_METADATA | {"algorithm", "answers"}
    again = load_model(tmp_path / "new")
    assert (again.env, again.args) == (load_model(MODEL).env, load_model(MODEL).args)
    template = jax.eval_shape(load_model(MODEL).algorithm.init, jax.random.key(0))
    save_model(tmp_path / "newly made", load_model(MODEL)._replace(params=zeros(template.params)))
    assert tensors_and_metadata(tmp_path / "newly made")[0] == PARAMS


def test_an_old_checkpoint_loads():
    assert tensors_and_metadata(CHECKPOINT)[0] == SAVED
    checkpoint = load_old_checkpoint()
    assert (checkpoint.update, checkpoint.resumes, checkpoint.recent, checkpoint.tracker) == (2, 0, [], None)
    assert checkpoint.row == list(read_rows(OLD_RUN))[1]
    assert digest(params_sums(checkpoint.saved.state.params)) == checkpoint.row["params_digest"]


def test_a_new_checkpoint_has_the_tensors_and_metadata_of_an_old_one(tmp_path):
    save_checkpoint(tmp_path / "new", load_old_checkpoint()._replace(saved=zeros(saved_today())))
    tensors, metadata = tensors_and_metadata(tmp_path / "new")
    assert tensors == SAVED and metadata.keys() == CHECKPOINT_METADATA
    save_checkpoint(tmp_path / "same", load_old_checkpoint())
    assert tensors_and_metadata(tmp_path / "same") == tensors_and_metadata(CHECKPOINT), "digests included"


def test_an_old_record_and_its_rows_are_read():
    record = read_record(OLD_RUN)
    assert record["args"]["env_id"] == "Breakout-v5" and record["plan"]["num_envs"] == 4
    assert record["layout"] == "a0-l0-d1" and len(record["parts"]) == 1 and is_finished(OLD_RUN)
    rows = list(read_rows(OLD_RUN))
    assert [row.get("update") for row in rows] == [1, 2, None]
    assert rows[-1]["eval/episodic_return"] == 2.5


def test_an_old_run_resumes(tmp_path, capsys):
    run_dir = shutil.copytree(OLD_RUN, tmp_path / "Breakout-v5__fixture__1__1795007491")
    cleanba_ppo.main(argv=["--resume", str(run_dir), "--total-timesteps", "96", "--no-save-model"])
    assert "resumed after update 2" in capsys.readouterr().out
    rows, old_rows = list(read_rows(run_dir)), list(read_rows(OLD_RUN))
    assert [row["update"] for row in rows] == [1, 2, 3] and rows[:2] == old_rows[:2]
    assert rows[2].keys() - old_rows[1].keys() == {"stats/actor_total_seconds", "stats/learner_total_seconds"}
    assert old_rows[1].keys() - rows[2].keys() <= {"charts/SPS", "stats/actor_waiting_seconds"}
    assert rows[2]["global_step"] == 96 and rows[2]["seconds"] > rows[1]["seconds"]
    assert rows[2]["params_digest"] != rows[1]["params_digest"]
    assert rows[2]["charts/learning_rate"] == pytest.approx(2.5e-4 / 3)
    record = read_record(run_dir)
    assert [part["from_update"] for part in record["parts"]] == [0, 2] and record["begun_with_envs"] == 4
    assert record.keys() == read_record(OLD_RUN).keys() | {"algorithm", "run_id", "env_origin"}, (
        "of a resumed run"
    )
    assert is_finished(run_dir)
