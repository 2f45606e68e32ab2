"""The machinery that all algorithms share: threads, devices, queues, environments, logging."""

import os

# Collectives of three or more virtual CPU devices can deadlock when the thread pool is as small as the
# machine (seen on two cores). One device keeps the default: a larger pool is some 15 % slower.
# XLA reads this once, when the first device is asked for.
if "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
    os.environ.setdefault("PJRT_NPROC", "16")
