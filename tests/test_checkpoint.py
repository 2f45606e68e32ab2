"""Checkpoints: what is in the file comes back, and what is not as it was written is not believed."""

import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from cleanba.sebulba import files
from cleanba.sebulba.args import UsageError
from cleanba.sebulba.checkpoint import (
    Checkpoint,
    Damaged,
    Keeper,
    Saved,
    _add,
    _header,
    _in_words,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from cleanba.sebulba.envs import Episode
from cleanba.sebulba.files import PatientFile, named_tensors, write_whole
from cleanba.sebulba.learner import LearnerState

ROW = {"update": 3, "global_step": 300, "seconds": 1.5, "stats/games": 2, "losses/loss": 0.25}


def saved():
    layer = {"kernel": jnp.array([[1.0, -0.0], [np.pi, 1e-40]]), "bias": jnp.ones(2)}
    params = {"params": {"Dense_0": layer}}
    state = LearnerState(params, optax.scale_by_adam().init(params))
    return jax.device_get(Saved(state, jax.random.key_data(jax.random.key(7))))


def checkpoint(update=3, **parts):
    games = [Episode(1.5, 7), Episode(-2.0, 9)]
    usual = dict(update=update, resumes=1, recent=games, tracker="ab12")
    return Checkpoint(**usual | dict(row=ROW | {"update": update}, saved=saved()) | parts)


def same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


LIKE = jax.eval_shape(saved)


def test_everything_comes_back_bit_for_bit(tmp_path):
    save_checkpoint(tmp_path / "c", checkpoint())
    loaded = load_checkpoint(tmp_path / "c", LIKE)
    assert loaded._replace(saved=None) == checkpoint(saved=None)
    same_bits(loaded.saved, saved())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_another_network_is_refused_by_name(tmp_path):
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
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path_factory, place, bit):
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
        assert "newer" in str(refusal), "only the format's digit may look like something else than damage"
        return
    # A space for another one between the parts of the header changes nothing.
    assert loaded._replace(saved=None) == checkpoint(saved=None)
    same_bits(loaded.saved, saved())


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, 0.5, -1])
def test_a_truncated_file_is_noticed(tmp_path, kept):
    save_checkpoint(tmp_path / "c", checkpoint())
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[: int(kept * len(data)) if kept == 0.5 else kept])
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def forge(path, **about):
    """A file with digests that fit."""
    usual = dict(update=3, resumes=0, row=ROW, recent=[], tracker=None)
    text, tensors = json.dumps(usual | about), named_tensors(saved())
    header = _header(text, {name: _in_words(tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    digests = {"header_digest": header.hexdigest(), "digest": _add(header, tensors).hexdigest()}
    save_file(tensors, path, {"format": "1", "about": text, **digests})


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
    """Whoever can compute a digest can write anything; nothing of it becomes a path, code or a count."""
    forge(tmp_path / "fine")
    load_checkpoint(tmp_path / "fine", LIKE)
    forge(tmp_path / "c", **about)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_pickle_is_not_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was here"),)

    import pickle

    (tmp_path / "c").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)
    assert not (tmp_path / "was here").exists()


def test_sizes_are_compared_with_the_file_before_memory_is_taken(tmp_path):
    """A header that promises a terabyte."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}}).encode()
    (tmp_path / "c").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)
    (tmp_path / "c").write_bytes((2**62).to_bytes(8, "little") + header)
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_newer_format_is_no_damage(tmp_path):
    save_file({}, tmp_path / "c", {"format": "2"})
    with pytest.raises(UsageError, match="newer Cleanba"):
        load_checkpoint(tmp_path / "c", LIKE)


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path, monkeypatch):
    """A network's disk that is away for a moment must not cost a checkpoint."""
    Keeper(tmp_path, minutes=10, keep=2).save(checkpoint())

    def stale(*_, **__):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("cleanba.sebulba.checkpoint.safe_open", stale)
    with pytest.raises(UsageError, match="cannot be read: Stale file handle"):
        find_checkpoint(tmp_path, LIKE)
    assert names(tmp_path) == ["update-3.safetensors"]


def test_tensors_of_other_shapes_are_not_read(tmp_path):
    """A sparse file of a terabyte takes no memory."""
    text = json.dumps(dict(update=3, resumes=0, row=ROW, recent=[], tracker=None))
    digest = _header(text, {"x": f"float32 ({2**38},)"}).hexdigest()
    metadata = {"format": "1", "about": text, "header_digest": digest, "digest": ""}
    tensor = {"dtype": "F32", "shape": [2**38], "data_offsets": [0, 2**40]}
    header = json.dumps({"__metadata__": metadata, "x": tensor}).encode()
    with (tmp_path / "c").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**40)
    with pytest.raises(UsageError, match=r"is of another network: .* should be"):
        load_checkpoint(tmp_path / "c", LIKE)


# ------------------------------------------------------------------------------------- the last few of a run


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_the_last_few_are_kept(tmp_path):
    keeper = Keeper(tmp_path, minutes=10, keep=2)
    assert not keeper.is_due
    for update in (9, 10, 11):
        keeper.save(checkpoint(update))
        (tmp_path / "checkpoints/update-12.safetensors.unfinished").touch()  # of a process that was killed
    keeper.save(checkpoint(100))
    assert names(tmp_path) == ["update-100.safetensors", "update-11.safetensors"]
    assert (keeper.update, keeper.step) == (100, 300)
    assert find_checkpoint(tmp_path, LIKE).update == 100


def test_one_is_due_after_so_many_minutes(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    keeper = Keeper(tmp_path, minutes=2, keep=2)
    now = 119.0
    assert not keeper.is_due
    now = 121.0
    assert keeper.is_due
    keeper.save(checkpoint())
    assert not keeper.is_due


def test_damaged_ones_are_set_aside_for_the_one_before(tmp_path, capsys):
    keeper = Keeper(tmp_path, minutes=10, keep=3)
    for update in (1, 2, 3):
        keeper.save(checkpoint(update))
    (tmp_path / "checkpoints/update-3.safetensors").write_bytes(b"cut")
    assert find_checkpoint(tmp_path, LIKE).update == 2
    assert "update-3.safetensors is damaged" in capsys.readouterr().err
    assert "update-3.damaged" in names(tmp_path)
    Keeper(tmp_path, 10, keep=1).save(checkpoint(3))
    assert find_checkpoint(tmp_path, LIKE).update == 3, "what was damaged must not stand in the way"


def test_without_any_there_is_none(tmp_path):
    assert find_checkpoint(tmp_path, LIKE) is None


def test_a_file_of_another_update_is_not_believed(tmp_path, capsys):
    keeper = Keeper(tmp_path, minutes=10, keep=3)
    keeper.save(checkpoint(1))
    keeper.save(checkpoint(2))
    (tmp_path / "checkpoints/update-1.safetensors").rename(tmp_path / "checkpoints/update-7.safetensors")
    assert find_checkpoint(tmp_path, LIKE).update == 2
    assert "it is of update 1" in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_old_ones(tmp_path, monkeypatch):
    keeper = Keeper(tmp_path, minutes=10, keep=1)
    keeper.save(checkpoint(1))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keeper.save(checkpoint(2))
    assert names(tmp_path) == ["update-1.safetensors"] and keeper.update == 1


def test_old_ones_that_cannot_be_removed_do_no_harm(tmp_path, monkeypatch):
    keeper = Keeper(tmp_path, minutes=10, keep=1)
    keeper.save(checkpoint(1))

    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("pathlib.Path.unlink", busy)
    keeper.save(checkpoint(2))
    assert keeper.update == 2


# --------------------------------------------------------------------------------------------------- files


def test_a_whole_file_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    kind = {True: "folder", False: "file"}
    monkeypatch.setattr(
        os, "fsync", lambda d: events.append(kind[stat.S_ISDIR(os.fstat(d).st_mode)]) or fsync(d)
    )
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("rename") or replace(*paths))
    write_whole(tmp_path / "x", b"abc")
    assert events == ["file", "rename", "folder"]
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_patient_file_keeps_what_a_full_disk_refuses(tmp_path, monkeypatch, capsys):
    """The disk takes two bytes of a row, then none, then all again."""
    file = PatientFile(tmp_path / "x")
    assert file.append(b"one\n")
    write, room = os.write, 2

    def small_disk(descriptor, data):
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(files.os, "write", small_disk)
    assert not file.append(b"two\n")
    assert not file.append(b"three\n")
    with pytest.raises(OSError, match="x is not complete"):
        file.sync()
    assert (tmp_path / "x").read_bytes() == b"one\ntw"
    room = 1000
    assert file.append(b"four\n")
    file.sync()
    file.close()
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\nthree\nfour\n"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "No space left on device" in said[0] and "nothing missing" in said[1]


def test_a_file_system_that_cannot_sync_is_good_enough(tmp_path, monkeypatch):
    def cannot(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", cannot)
    write_whole(tmp_path / "x", b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"
