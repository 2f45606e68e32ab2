"""What an algorithm is made of: the seam between it and the engine (`algorithm`), a network as functions
(`agent`), networks and their layers, action distributions, returns. Pure functions of arrays.

cleanba_ppo.py and cleanba_impala.py put these together. Imports envs (what an environment is), runtime and
config.
"""
