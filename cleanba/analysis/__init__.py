"""Comparing runs: `diff` of two, `report` of many, and the statistics behind it. Needs no jax.

Imports records (to read run folders), evaluation (human scores), runtime and config.
"""
