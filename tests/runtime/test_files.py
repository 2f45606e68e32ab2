"""Files that survive crashes and full disks."""

import os
import stat

import pytest

from cleanba.runtime.files import RetryingFile, atomic_write


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


def test_a_file_system_without_sync_is_accepted(tmp_path, monkeypatch):
    def cannot(descriptor):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", cannot)
    atomic_write(tmp_path / "x", b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"
