"""Which GPUs there are."""

import os
import re
import shutil
import subprocess

NO_GPU = ("", "-1", "NoDevFiles")  # in CUDA_VISIBLE_DEVICES; the last is SLURM's


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in re.split(r"[,\s]+", visible) if gpu not in NO_GPU]
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(gpu) for gpu in range(len(re.findall("^GPU ", listed, re.MULTILINE)))]
