"""What every program needs from the machine, whatever it computes: devices and cores, compilation and
determinism, signals and exit codes, files that survive crashes, timers and the profiler.

Imports `config`. Nothing here knows environments, networks or algorithms.
"""

import os
import sys

# Collectives of three or more virtual CPU devices can deadlock when XLA's thread pool is as small as the
# machine (seen on two cores). One device keeps the default: a larger pool is some 15 % slower.
# XLA reads this once, when the first device is asked for.
if "JAX_NUM_CPU_DEVICES" in os.environ or "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
    os.environ.setdefault("PJRT_NPROC", "16")

try:
    os.getcwd()
except FileNotFoundError:  # EnvPool would abort the process
    print("error: the working directory was deleted; change to one that exists", file=sys.stderr)
    sys.exit(2)
