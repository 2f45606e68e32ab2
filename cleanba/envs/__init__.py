"""Environments: what they are (`spec`), which backend makes them (`factory`), the backends, Atari presets,
seeds, the episodes they finish, and frame stacks.

`envpool.py` is the only module that imports EnvPool. `gymnasium_envs.py` has Gymnasium's environments and the
user's own: `workers.py` starts processes, each of which (`worker.py`) holds several environments and shares
memory with the one that started it (`shared_rows.py`); `wrappers.py` has the options around an environment.
Another backend is another module beside them, and a line in `factory.py`. Imports runtime and config.
"""
