"""Videos, encoded by the ffmpeg that comes with imageio-ffmpeg (the extra `video`)."""

import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np


class Video:
    """An mp4 file, written image by image. A failure sets `problem` and never raises. An interrupted video
    leaves no file, and an existing file as it was."""

    def __init__(self, path: Path, fps: float):
        self.path = path
        self._unfinished = path.with_name(f"unfinished-{path.name}")
        self.problem: str | None = None
        self._fps = fps
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 – closed by __exit__
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, image: np.ndarray) -> None:
        """u8 [height, width, 3]"""
        if self.problem is not None:
            return
        scale = max(1, 480 // min(image.shape[:2]))  # an integer: pixels stay sharp
        image = image.repeat(scale, axis=0).repeat(scale, axis=1)
        try:
            self._encoder = self._encoder or self._start_encoder(*image.shape[:2])
            # No poll() here: a Ctrl-C in it can leave its lock held, and __exit__ would wait for it forever.
            cast(IO[bytes], self._encoder.stdin).write(image.tobytes())
        except OSError as error:
            self.problem = str(error)  # replaced in __exit__ by the encoder's own message, if there is one

    def __enter__(self) -> "Video":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._encoder is not None:
            if kind is not None:
                self._encoder.kill()
            self._encoder.communicate()
            if self._encoder.returncode == 0:
                try:
                    self._unfinished.replace(self.path)
                except OSError as error:  # its folder was moved or deleted
                    self.problem = str(error)
            else:
                self._unfinished.unlink(missing_ok=True)
                self._stderr.seek(0)
                message = self._stderr.read().decode(errors="replace").strip()
                self.problem = message or "the encoder was killed"
        self._stderr.close()

    def _start_encoder(self, height: int, width: int) -> "subprocess.Popen[bytes]":
        """Without imageio-ffmpeg's own functions: they fork, which jax warns about."""
        import imageio_ffmpeg  # an extra

        self._unfinished.unlink(missing_ok=True)  # the encoder would follow a link
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self._fps:g}"]
        even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]  # yuv420p needs even sizes
        mp4 = ["-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
        ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"]
        return subprocess.Popen(
            [*ffmpeg, *raw, "-i", "-", *even, *mp4, f"file:{self._unfinished}"],
            stdin=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,  # Ctrl-C only reaches this process, which then ends the encoder
        )
