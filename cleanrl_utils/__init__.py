"""Tools around training runs. They import only those modules of cleanba that do not need jax."""
