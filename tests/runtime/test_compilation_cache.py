import subprocess
import sys
from pathlib import Path

import jax
import pytest

from cleanba.runtime.compilation_cache import cache_dir, make_private, use_compilation_cache

PROGRAM = """
import jax, jax.numpy as jnp
from cleanba.runtime.compilation_cache import use_compilation_cache
use_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # as if this one took long
print(jax.jit(lambda x: jnp.sort(x) @ x)(jnp.arange(3.0)), jax.config.jax_compilation_cache_dir)
"""


def start(monkeypatch, cache, **env):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5.0"), done.stdout
    return done


def test_compiled_programs_are_kept_for_the_next_start(monkeypatch, tmp_path):
    start(monkeypatch, tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (kept,) = cache_dir().glob("*lambda*-cache")
    before = kept.stat().st_mtime_ns
    start(monkeypatch, tmp_path)
    assert kept.stat().st_mtime_ns == before
    kept.write_bytes(kept.read_bytes()[:100])  # as if a process was killed while it wrote
    start(monkeypatch, tmp_path)


def test_nobody_else_can_put_programs_into_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_dir()
    assert make_private(folder)
    ours = [folder.parents[1], folder.parents[0], folder]
    assert [place.stat().st_mode & 0o777 for place in ours] == [0o700] * 3
    (folder / "program").touch()
    assert make_private(folder) and (folder / "program").exists()
    for place in ours:
        place.chmod(0o770)
        assert make_private(folder) and not (folder / "program").exists(), "it may be anybody's"
        assert place.stat().st_mode & 0o777 == 0o700
        (folder / "program").touch()


def test_a_cache_of_another_user_is_not_used(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax.config, "update", lambda *setting: pytest.fail(str(setting)))
    monkeypatch.setattr(
        "cleanba.runtime.compilation_cache.is_own_folder", lambda folder: folder != cache_dir()
    )
    assert not make_private(cache_dir())
    assert "belongs to another user: compiled programs are not kept" in capsys.readouterr().err


def test_jaxs_own_settings_count(monkeypatch, tmp_path):
    done = start(monkeypatch, tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert str(tmp_path / "theirs") in done.stdout
    assert not (tmp_path / "ours").exists()


def test_an_unwritable_cache_stops_nobody(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    start(monkeypatch, tmp_path / "file")


def test_without_a_home_nothing_is_kept(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr(jax.config, "update", lambda *setting: pytest.fail(str(setting)))
    use_compilation_cache()


def test_another_seed_finds_everything_compiled(run):
    run(seed=1)
    events: list[str] = []

    def listen(event, **_):
        events.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        run(seed=2)
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert "/jax/compilation_cache/cache_hits" in events
    assert "/jax/compilation_cache/cache_misses" not in events
