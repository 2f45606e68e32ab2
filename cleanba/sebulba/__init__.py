"""The engine: DeepMind's Sebulba (Hessel et al. 2021, "Podracer architectures"). An actor steps its
environments asynchronously and writes rollouts; the env scheduler decides which environments act next; what
travels with an environment stays on the actor's device; channels connect the threads; the learner computes
gradients over a mesh of devices.

Imports agents (the algorithm's functions), envs, runtime and config. Nothing here knows a particular
algorithm, a file or a terminal.
"""
