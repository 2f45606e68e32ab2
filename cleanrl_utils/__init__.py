"""Tools around training runs; nothing here imports cleanba."""
