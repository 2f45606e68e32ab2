"""Train deep-RL agents with the Sebulba architecture in JAX.

At the top are the things a user starts: the algorithms (cleanba_ppo.py, cleanba_impala.py), presets of their
hyper-parameters (cleanba_*_*.py), the other commands (cleanba_eval.py, cleanba_bench.py, …) and `cli.py`,
which gives each a name. `algorithms.py` is the registry. Everything else is in packages, and imports point
one way:

    config ← runtime ← envs ← agents ← sebulba ← evaluation ← records, distributed ← training ← bench,
    analysis
"""
