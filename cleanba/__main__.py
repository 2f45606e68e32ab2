"""`python -m cleanba` is `cleanba`."""

from cleanba.cli import main

if __name__ == "__main__":
    main()
