"""Checkpoints come back as they were saved; a file that was changed is not trusted."""

import hashlib
import json
import os
import pickle
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from cleanba.config.errors import UsageError
from cleanba.envs.episodes import Episode
from cleanba.records.checkpoint import (
    Checkpoint,
    CheckpointManager,
    Damaged,
    Saved,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from cleanba.sebulba.learner import LearnerState

ROW = {"update": 3, "global_step": 300, "seconds": 1.5, "stats/games": 2, "losses/loss": 0.25}


def saved():
    layer = {"kernel": jnp.array([[1.0, -0.0], [np.pi, 1e-40]]), "bias": jnp.ones(2)}
    params = {"params": {"Dense_0": layer}}
    state = LearnerState(params, optax.scale_by_adam().init(params))
    return jax.device_get(Saved(state, jax.random.key_data(jax.random.key(7))))


def checkpoint(update=3, **parts):
    recent = [Episode(1.5, 7), Episode(-2.0, 9)]
    default = dict(update=update, resumes=1, recent=recent, tracker="ab12")
    return Checkpoint(**default | dict(row=ROW | {"update": update}, saved=saved()) | parts)


def check_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


LIKE = jax.eval_shape(saved)


def test_everything_comes_back_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "c", checkpoint())
    loaded = load_checkpoint(tmp_path / "c", LIKE)
    assert loaded._replace(saved=None) == checkpoint(saved=None)
    check_same_bits(loaded.saved, saved())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_another_network_is_refused_and_its_tensor_named(tmp_path):
    save_checkpoint(tmp_path / "c", checkpoint())
    other = jax.eval_shape(saved)
    other.state.params["params"]["Dense_0"]["bias"] = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(UsageError, match=r"params/Dense_0/bias should be float32 \(3,\), is float32 \(2,\)"):
        load_checkpoint(tmp_path / "c", other)
    del other.state.params["params"]["Dense_0"]["bias"]
    with pytest.raises(UsageError, match="bias should be absent"):
        load_checkpoint(tmp_path / "c", other)


@settings(deadline=None, max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_detected_anywhere(tmp_path_factory, place, bit):
    path = tmp_path_factory.mktemp("flip") / "c"
    save_checkpoint(path, checkpoint())
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    try:
        loaded = load_checkpoint(path, LIKE)
    except Damaged:
        return
    except UsageError as refusal:
        assert "newer" in str(refusal), "only a flip in the format's digit may be reported as something else"
        return
    # Other whitespace between the parts of the header changes nothing.
    assert loaded._replace(saved=None) == checkpoint(saved=None)
    check_same_bits(loaded.saved, saved())


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, -1])
def test_a_truncated_file_is_detected(tmp_path, kept):
    save_checkpoint(tmp_path / "c", checkpoint())
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[: int(kept * len(data)) if kept == 0.5 else kept])
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def forge(path, **about):
    """A file with arbitrary contents and matching digests."""
    fields = dict(update=3, resumes=0, row=ROW, recent=[], tracker=None) | about
    save_checkpoint(path, namedtuple("Forged", [*fields, "saved"])(**fields, saved=saved()))


@pytest.mark.parametrize(
    "about",
    [
        dict(tracker="../../../../home/somebody"),
        dict(tracker="a/b"),
        dict(tracker=7),
        dict(tracker=".." + "/x"),
        dict(update=-1),
        dict(update=2**70),
        dict(update="1"),
        dict(update=True),
        dict(row={}),
        dict(row=[]),
        dict(row=ROW | {"stats/games": -5}),
        dict(row=ROW | {"update": 4}),
        dict(row=ROW | {"seconds": "NaN"}),
        dict(row={name: value for name, value in ROW.items() if name != "seconds"}),
        dict(recent=[[1.0]]),
        dict(recent=[[1.0, float("inf")]]),
        dict(recent=[["a", 1]]),
        dict(recent=3),
        dict(extra=1),
    ],
    ids=str,
)
def test_a_forged_file_is_refused(tmp_path, about):
    """Anyone can compute a digest. No forged value may become a path, code or a count."""
    forge(tmp_path / "fine")
    load_checkpoint(tmp_path / "fine", LIKE)
    forge(tmp_path / "c", **about)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_pickle_is_not_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    (tmp_path / "c").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)
    assert not (tmp_path / "was here").exists()


def test_sizes_are_checked_against_the_file_before_memory_is_allocated(tmp_path):
    """A header that announces a terabyte."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    (tmp_path / "c").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)
    (tmp_path / "c").write_bytes((2**62).to_bytes(8, "little") + header)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_newer_format_is_not_damage(tmp_path):
    save_file({}, tmp_path / "c", {"format": "2"})
    with pytest.raises(UsageError, match="newer Cleanba"):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_file_that_cannot_be_read_is_not_damage(tmp_path, monkeypatch):
    """A network disk that is briefly unavailable must not cost a checkpoint."""
    CheckpointManager(tmp_path, minutes=10, keep=2).save(checkpoint())

    def stale(*_, **__):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("cleanba.records.checkpoint.safe_open", stale)
    with pytest.raises(UsageError, match="cannot be read: Stale file handle"):
        find_checkpoint(tmp_path, LIKE)
    assert names(tmp_path) == ["update-3.safetensors"]


def test_tensors_of_other_shapes_are_not_read(tmp_path):
    """A sparse file of a terabyte takes no memory."""
    text = json.dumps(dict(update=3, resumes=0, row=ROW, recent=[], tracker=None))
    types = json.dumps([["x", f"float32 ({2**38},)"]])
    digest = hashlib.blake2b((text + types).encode(), digest_size=16).hexdigest()
    metadata = {"format": "1", "about": text, "header_digest": digest, "digest": ""}
    tensor = {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}
    header = json.dumps({"__metadata__": metadata, "x": tensor}).encode()
    with (tmp_path / "c").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**40)
    with pytest.raises(UsageError, match=r"is a checkpoint of another algorithm or network: .* should be"):
        load_checkpoint(tmp_path / "c", LIKE)


# ---------------------------------------------------------------------------------- the checkpoints of a run


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_the_last_k_checkpoints_are_kept(tmp_path):
    checkpoints = CheckpointManager(tmp_path, minutes=10, keep=2)
    assert not checkpoints.is_due
    for update in (9, 10, 11):
        checkpoints.save(checkpoint(update))
        (tmp_path / "checkpoints/update-12.safetensors.unfinished").touch()  # left by a killed process
    checkpoints.save(checkpoint(100))
    assert names(tmp_path) == ["update-100.safetensors", "update-11.safetensors"]
    assert (checkpoints.update, checkpoints.step) == (100, 300)
    assert find_checkpoint(tmp_path, LIKE).update == 100


def test_a_checkpoint_is_due_after_its_interval(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    checkpoints = CheckpointManager(tmp_path, minutes=2, keep=2)
    now = 119.0
    assert not checkpoints.is_due
    now = 121.0
    assert checkpoints.is_due
    checkpoints.save(checkpoint())
    assert not checkpoints.is_due


def test_a_damaged_checkpoint_is_renamed_and_the_previous_one_used(tmp_path, capsys):
    checkpoints = CheckpointManager(tmp_path, minutes=10, keep=3)
    for update in (1, 2, 3):
        checkpoints.save(checkpoint(update))
    (tmp_path / "checkpoints/update-3.safetensors").write_bytes(b"cut")
    assert find_checkpoint(tmp_path, LIKE).update == 2
    assert "update-3.safetensors is damaged" in capsys.readouterr().err
    assert "update-3.damaged" in names(tmp_path)
    CheckpointManager(tmp_path, 10, keep=1).save(checkpoint(3))
    assert find_checkpoint(tmp_path, LIKE).update == 3, "the damaged file must not block its name"


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert find_checkpoint(tmp_path, LIKE) is None


def test_a_checkpoint_with_the_name_of_another_update_is_refused(tmp_path, capsys):
    checkpoints = CheckpointManager(tmp_path, minutes=10, keep=3)
    checkpoints.save(checkpoint(1))
    checkpoints.save(checkpoint(2))
    (tmp_path / "checkpoints/update-1.safetensors").rename(tmp_path / "checkpoints/update-7.safetensors")
    assert find_checkpoint(tmp_path, LIKE).update == 2
    assert "it holds update 1" in capsys.readouterr().err


def test_a_failed_write_keeps_the_old_checkpoints(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, minutes=10, keep=1)
    checkpoints.save(checkpoint(1))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(checkpoint(2))
    assert names(tmp_path) == ["update-1.safetensors"] and checkpoints.update == 1


def test_old_checkpoints_that_cannot_be_removed_do_no_harm(tmp_path, monkeypatch):
    checkpoints = CheckpointManager(tmp_path, minutes=10, keep=1)
    checkpoints.save(checkpoint(1))

    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("pathlib.Path.unlink", busy)
    checkpoints.save(checkpoint(2))
    assert checkpoints.update == 2
