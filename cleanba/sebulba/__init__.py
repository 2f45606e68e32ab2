"""The machinery that all algorithms share: threads, devices, queues, environments, logging."""

import os

# On the CPU, collectives of three or more devices can deadlock when the thread pool is as small as the
# machine (seen on two cores). XLA reads this once, when jax starts, so it is set before jax is imported.
os.environ.setdefault("PJRT_NPROC", "16")
