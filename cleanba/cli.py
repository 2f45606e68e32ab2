"""The `cleanba` command."""

import sys
from importlib import import_module

from cleanba.algorithms import ALGORITHMS, load_algorithm

COMMANDS = {  # name: its module, and what it does
    "launch": ("cleanba.distributed.launch", "train with several processes on this machine"),
    "eval": ("cleanba.cleanba_eval", "evaluate a trained model"),
    "envs": ("cleanba.cleanba_envs", "list the environments, or show one"),
    "bench": ("cleanba.cleanba_bench", "measure how fast a run is on this machine, and what limits it"),
    "diff": ("cleanba.cleanba_diff", "compare two runs, update by update"),
    "plot": ("cleanba.cleanba_plot", "plot the learning curves of runs"),
    "report": ("cleanba.cleanba_report", "make tables, figures and a web page from many runs"),
}
USAGE = "\n".join(
    [
        "usage: cleanba COMMAND [flags]\n\ncommands:",
        *(f"  {name:7} train with {name.upper()}" for name in ALGORITHMS),
        "  train   train with an algorithm of your own: cleanba train FILE.py [flags]",
        *(f"  {name:7} {purpose}" for name, (_, purpose) in COMMANDS.items()),
        "\ncleanba COMMAND --help lists the flags.",
    ]
)


def main() -> None:
    try:
        from cleanba.runtime.command import command

        with command():
            run(sys.argv[1:])
    except KeyboardInterrupt:  # before `command` handles signals
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def run(argv: list[str]) -> None:
    match argv:
        case [] | ["-h" | "--help"] | ["train"] | ["train", "-h" | "--help"]:
            print(USAGE)
        case [name, *flags] if name in ALGORITHMS:
            train(name, flags, prog=f"cleanba {name}")
        case ["train", file, *flags]:
            train(file, flags, prog=f"cleanba train {file}")
        case [name, *flags] if name in COMMANDS:
            module, _ = COMMANDS[name]
            import_module(module).main(argv=flags, prog=f"cleanba {name}")
        case [name, *_]:
            print(f"cleanba: unknown command {name!r}\n\n{USAGE}", file=sys.stderr)
            sys.exit(2)


def train(algorithm: str, flags: list[str], prog: str) -> None:
    from cleanba.runtime.command import command

    with command(resumable=True):  # also while Python imports
        from cleanba.training.train import run_command

        module = load_algorithm(algorithm)
        title = (module.__doc__ or f"Train with {algorithm}.").strip().splitlines()[0]
        run_command(module.Args(), module.make_algorithm, description=title, argv=flags, prog=prog)
