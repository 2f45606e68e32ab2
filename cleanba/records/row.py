"""One row of metrics per update, and the interface of those who receive it."""

from typing import Any, Protocol

Row = dict[str, Any]
RECENT_GAMES = 100  # reported returns and lengths are means over this many finished episodes


class Writer(Protocol):
    def write(self, row: Row) -> None: ...
    def close(self) -> None: ...


def is_logged(row: Row, frequency: int, updates: int) -> bool:
    """Every `frequency`-th update, the last one, and what is written after it."""
    return "update" not in row or row["update"] % frequency == 0 or row["update"] == updates


def charts(row: Row) -> Row:
    """The metrics, without counters and digests."""
    return {name: value for name, value in row.items() if "/" in name}
