"""The error for bad input."""


class UsageError(Exception):
    """Something the user gave cannot work. One line that names the flag and the fix; exit code 2."""
