"""Decodes videos."""

import re
import subprocess

import imageio_ffmpeg
import numpy as np


def read_video(path):
    """Frames per second, and u8 [frames, height, width, 3]."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(command, capture_output=True, check=True)
    width, height, fps = re.search(r" (\d{3,})x(\d{3,}).* (\d+) fps", decoded.stderr.decode()).groups()
    return int(fps), np.frombuffer(decoded.stdout, np.uint8).reshape(-1, int(height), int(width), 3)
