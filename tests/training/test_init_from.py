import jax
import numpy as np
import optax
import pytest
from helpers.normalizing import next_stats, normalizing_agent

from cleanba import cleanba_ppo
from cleanba.agents.algorithm import Decision, Published
from cleanba.config.errors import UsageError
from cleanba.records.run_folder import is_finished


def test_a_run_starts_from_the_params_of_a_model(run):
    teacher, _ = run(save_model=True)
    frozen = dict(learning_rate=lambda update, extra: 0.0)
    student, rows = run(frozen, init_from=str(teacher.saved), seed=2)
    jax.tree.map(np.testing.assert_array_equal, student.model.params, teacher.model.params)
    assert len(rows) == 5
    learned, _ = run(init_from=str(teacher.run_dir), seed=2)  # a run folder will do
    assert not np.array_equal(*(jax.tree.leaves(m.params)[0] for m in (learned.model, teacher.model)))


def test_params_that_do_not_fit_are_refused_by_name(run, tmp_path):
    teacher, _ = run(save_model=True)
    with pytest.raises(UsageError, match=r"params/Dense_0/bias should be float32 \(8,\), is float32 \(16,\)"):
        run(init_from=str(teacher.saved), hiddens=(8,))
    with pytest.raises(UsageError, match="does not exist"):
        run(init_from=str(tmp_path / "nothing"))
    assert len(list(tmp_path.iterdir())) == 1  # no folder is left of a run that cannot start


def test_a_training_from_python_is_finished(run):
    assert is_finished(run()[0].run_dir)


def test_an_extra_of_the_same_kind_comes_along_and_another_stays_fresh(run, monkeypatch, capsys):
    teacher, _ = run(save_model=True)
    monkeypatch.setattr(cleanba_ppo, "make_agent", normalizing_agent)
    frozen = dict(learning_rate=lambda update, extra: 0.0, next_extra=next_stats)
    student, _ = run(frozen, init_from=str(teacher.saved), save_model=True)  # the teacher has no statistics
    jax.tree.map(np.testing.assert_array_equal, student.model.params, teacher.model.params)
    count = int(student.model.extra.count)
    assert (
        f"{teacher.saved} has no statistics or other `extra` as this run keeps them"
        in capsys.readouterr().err
    )
    again, _ = run(frozen, init_from=str(student.saved))
    assert int(again.model.extra.count) > count
    assert capsys.readouterr().err == ""


def test_the_optimizer_starts_from_the_params_of_the_model(run):
    """One that remembers them must not remember those of a fresh network."""
    teacher, _ = run(save_model=True)
    seen = []

    def start(params):
        seen.append(params)
        return params

    optimizer = optax.GradientTransformation(start, lambda gradient, state, params=None: (gradient, state))
    run(dict(optimizer=optimizer), init_from=str(teacher.saved), seed=2)
    jax.tree.map(np.testing.assert_array_equal, seen[-1], teacher.model.params)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            dict(
                init=lambda key: Published({}, np.zeros(3, bool)),
                act=lambda *seen: (Decision(seen[-1], ()), ()),
            ),
            "extra is bool; give it a type of four bytes",
        ),
        (dict(act=lambda *seen: (Decision(seen[-1], seen[-1] > 0), ())), "record is bool; give it a type"),
        (
            dict(act=lambda *seen: (Decision(seen[-1] * 1.0, seen[-1]), ())),
            "actions are .*float32.*CartPole-v1",
        ),
        (dict(optimizer=optax.adam(0.1, mu_dtype="bfloat16")), "optimizer/0/mu/.*bfloat16; give it a type"),
        (
            dict(optimizer=optax.apply_if_finite(optax.sgd(0.1), 3)),
            "optimizer/last_finite is bool; give it a",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused_at_the_start(run, parts, message):
    with pytest.raises(UsageError, match=message):
        run(parts)


def test_a_policy_of_normalized_observations_needs_them(run):
    """Otherwise it would silently see others."""
    teacher, _ = run(normalize_observations=True, total_timesteps=64, save_model=True)
    same, _ = run(normalize_observations=True, total_timesteps=64, init_from=str(teacher.saved))
    assert same.model.extra.obs["obs"].rows == 2 * 64
    with pytest.raises(UsageError, match="has seen normalized observations; give the same flags"):
        run(init_from=str(teacher.saved))
