"""Train deep-RL agents with the Sebulba architecture in JAX."""
