"""Environments: what they are (`spec`), which backend makes them (`factory`), the backends (`envpool`), Atari
presets, seeds, the episodes they finish, and frame stacks.

Another backend is another module beside `envpool.py`, the only one that imports EnvPool, and a line in
`factory.py`. Imports runtime and config.
"""
