"""What a run leaves behind: its folder (one reader, one writer), a row per update, the writers that receive
the rows (metrics.jsonl, TensorBoard, Weights & Biases, the terminal), checkpoints, resuming, digests.

Imports evaluation and everything below it. To only read runs, import `run_folder`: it does not import jax.
"""
