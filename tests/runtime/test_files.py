"""Files that survive crashes and full disks."""

import fcntl
import os
import stat
from threading import Timer

import pytest

from cleanba.runtime.files import (
    OpenFolder,
    RetryingFile,
    atomic_write,
    free_bytes,
    is_own_folder,
    open_to_read,
    write_when_possible,
)


def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    kind = {True: "folder", False: "file"}
    monkeypatch.setattr(
        os, "fsync", lambda d: events.append(kind[stat.S_ISDIR(os.fstat(d).st_mode)]) or fsync(d)
    )
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("rename") or replace(*paths))
    atomic_write(tmp_path / "x", b"abc")
    assert events == ["file", "rename", "folder"]
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_retrying_file_keeps_what_a_full_disk_refuses(tmp_path, monkeypatch, capsys):
    """The disk takes two bytes of a row, then none, then everything again."""
    file = RetryingFile(tmp_path / "x")
    assert file.append(b"one\n")
    write, room = os.write, 2

    def small_disk(descriptor, data):
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", small_disk)
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
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 2
    assert "No space left on device" in messages[0] and "nothing is missing" in messages[1]


def test_a_lock_is_waited_for_while_somebody_looks_whether_there_is_one(tmp_path):
    file = RetryingFile(tmp_path / "x")
    with (tmp_path / "x").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        assert file.lock()
        another = RetryingFile(tmp_path / "x")
        assert not another.lock()
    for opened in (file, another):
        opened.close()


def test_a_lock_of_a_file_that_was_replaced_meanwhile_is_none(tmp_path):
    """Whoever had it has moved to a copy, and still writes there."""
    file, late = (RetryingFile(tmp_path / "x") for _ in range(2))
    os.link(tmp_path / "x", tmp_path / "backup")
    assert file.lock() and file.unshare()
    assert not late.lock()
    file.append(b"one\n")
    assert ((tmp_path / "x").read_bytes(), (tmp_path / "backup").read_bytes()) == (b"one\n", b"")
    for opened in (file, late):
        opened.close()


def test_a_file_system_without_sync_is_accepted(tmp_path, monkeypatch):
    def cannot(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", cannot)
    atomic_write(tmp_path / "x", b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_link_with_the_name_of_an_unfinished_file_is_not_followed(tmp_path):
    (tmp_path / "own").write_text("my own")
    (tmp_path / "x.unfinished").symlink_to(tmp_path / "own")
    atomic_write(tmp_path / "x", b"abc")
    assert (tmp_path / "own").read_text() == "my own" and (tmp_path / "x").read_bytes() == b"abc"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_only_regular_files_are_read(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(OSError, match="it is not a regular file"):
        open_to_read(tmp_path / "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_is_ones_own_if_its_owner_is_that_of_new_files(tmp_path):
    assert is_own_folder(tmp_path) and not list(tmp_path.iterdir())
    os.chown(tmp_path, 65534, -1)
    assert not is_own_folder(tmp_path)


def test_a_moved_folder_is_found_and_a_deleted_one_is_not(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    folder = OpenFolder(tmp_path / "a/b")
    (tmp_path / "a").rename(tmp_path / "c")
    assert folder.find() == tmp_path / "c/b" == folder.path
    (tmp_path / "c/b").rmdir()
    assert folder.find() is None
    (tmp_path / "c/b").mkdir()
    assert folder.find() is None, "another folder with its name"
    folder.close()


def test_a_full_disk_is_waited_for_and_other_errors_are_not(monkeypatch, capsys):
    monkeypatch.setattr("cleanba.runtime.files.RETRY_SECONDS", 0)
    errors = [OSError(28, "No space left on device")] * 3

    def write():
        if errors:
            raise errors.pop()
        return "written"

    assert write_when_possible(write, "the model", seconds=60) == "written"
    assert capsys.readouterr().err.count("the model finds no room (No space left on device)") == 1
    for error, seconds in ((OSError(13, "Permission denied"), 60), (OSError(28, "No space left"), -1)):
        errors.append(error)
        with pytest.raises(OSError, match=error.strerror):
            write_when_possible(write, "the model", seconds)


def test_room_is_measured_where_a_folder_will_be(tmp_path):
    room = os.statvfs(tmp_path)
    assert free_bytes(tmp_path / "not/yet") == pytest.approx(room.f_bavail * room.f_frsize, rel=0.5)
