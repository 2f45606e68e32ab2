"""A live view in a notebook's cell. (rich's own needs ipywidgets there.)"""

import io
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, RenderableType

SECONDS = 0.5  # from one update to the next
WIDTH = 100
PRE = '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'


def in_notebook() -> bool:
    return Console().is_jupyter


class NotebookView:
    """`render` gives what is shown; the same output of the cell is replaced again and again."""

    def __init__(self, render: Callable[[], RenderableType]):
        self._render = render
        self._handle: Any = None
        self._shown = 0.0

    def update(self) -> None:
        """Unless it was shown just now."""
        if time.monotonic() - self._shown > SECONDS:
            self.show()

    def show(self) -> None:
        from IPython.display import HTML, display

        self._shown = time.monotonic()
        page = HTML(as_html(self._render()))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def as_html(view: RenderableType) -> str:
    """In the notebook's own colours, on light and dark pages."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False, color_system="truecolor"
    )
    console.print(view)
    return console.export_html(inline_styles=True, code_format=PRE)
