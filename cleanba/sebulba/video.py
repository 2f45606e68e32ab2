"""Videos through the encoder that imageio-ffmpeg brings along (the extra `video`)."""

import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np


class Film:
    """An mp4 of pictures. Failing to make it is a `problem` to report, never an exception. A film that is
    broken off leaves nothing, and what was there before."""

    def __init__(self, path: Path, fps: float):
        self.path = path
        self._unfinished = path.with_name(f"unfinished-{path.name}")
        self.problem: str | None = None
        self._fps = fps
        self._complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 – closed by __exit__
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, picture: np.ndarray) -> None:
        """u8 [height, width, 3]"""
        if self.problem is not None:
            return
        enlarged = max(1, 480 // min(picture.shape[:2]))  # whole pixels stay sharp
        picture = picture.repeat(enlarged, axis=0).repeat(enlarged, axis=1)
        try:
            self._encoder = self._encoder or self._start_encoder(*picture.shape[:2])
            # No poll() here: a Ctrl-C in it can leave a lock taken, for which __exit__ would wait forever.
            cast(IO[bytes], self._encoder.stdin).write(picture.tobytes())
        except OSError as error:
            self.problem = str(error)  # what the encoder says at its end is better, if it says something

    def __enter__(self) -> "Film":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._encoder is not None:
            if kind is not None:
                self._encoder.kill()
            self._encoder.communicate()
            if self._encoder.returncode == 0:
                self._unfinished.replace(self.path)
            else:
                self._unfinished.unlink(missing_ok=True)
                self._complaints.seek(0)
                self.problem = self._complaints.read().decode(errors="replace").strip() or "it was ended"
        self._complaints.close()

    def _start_encoder(self, height: int, width: int) -> "subprocess.Popen[bytes]":
        """Not through imageio-ffmpeg's own functions: they fork in a way that jax warns of."""
        import imageio_ffmpeg  # an extra

        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}"]
        even = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # as the pixel format needs it
        mp4 = ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        return subprocess.Popen(
            [
                ffmpeg,
                "-y",
                "-loglevel",
                "error",
                *raw,
                "-i",
                "-",
                "-vf",
                even,
                *mp4,
                f"file:{self._unfinished}",
            ],
            stdin=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the encoder
        )
