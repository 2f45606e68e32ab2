"""The `cleanba` command."""

import cleanba.runtime.early_signals  # isort: skip  # noqa: F401

import sys
from importlib import import_module

from cleanba.algorithms import ALGORITHMS, PRESETS, load_algorithm

COMMANDS = {  # name: its module, and what it does
    "launch": ("cleanba.distributed.launch", "train with several processes on this machine"),
    "runs": ("cleanba.cleanba_runs", "list runs: state, steps, return, and how to resume them"),
    "eval": ("cleanba.cleanba_eval", "evaluate a trained model"),
    "envs": ("cleanba.cleanba_envs", "list the environments, or show one"),
    "bench": ("cleanba.cleanba_bench", "measure how fast a run is here, and what limits it"),
    "diff": ("cleanba.cleanba_diff", "compare two runs, update by update"),
    "plot": ("cleanba.cleanba_plot", "plot the learning curves of runs"),
    "report": ("cleanba.cleanba_report", "make tables, figures and a web page from many runs"),
    "completion": ("cleanba.cleanba_completion", "complete flags with TAB in bash, zsh or fish"),
}
FOR = {  # what they are for, in a few words; --help has more
    "ppo": "PPO; its defaults are for Atari on a GPU",
    "impala": "IMPALA; its defaults are for Atari on a GPU",
    "ppo-fit": "Atari, sized to this machine: minutes on a CPU (`make train`)",
    "ppo-atari-fast": "Atari, a high score soon, on one GPU",
    "ppo-continuous": "MuJoCo, dm_control, Box2D",
    "ppo-procgen": "Procgen",
}
USAGE = "\n".join(
    [
        "usage: cleanba COMMAND [flags]\n\ntrain:",
        *(f"  {name:14}  {FOR.get(name, name.upper())}" for name in ALGORITHMS),
        *(f"  {name:14}  {FOR[name]}" for name in PRESETS if name in FOR),
        "  train FILE.py   an algorithm of your own",
        "\npresets of the original Cleanba, for Atari:",
        *(f"  {name}" for name in PRESETS if name not in FOR),
        "\nand more:",
        *(f"  {name:14}  {purpose}" for name, (_, purpose) in COMMANDS.items()),
        "\ncleanba COMMAND --help lists the flags; cleanba --version shows the version.",
    ]
)


def main() -> None:
    from cleanba.runtime.command import command

    with command():
        run(sys.argv[1:])


def run(argv: list[str]) -> None:
    match argv:
        case [] | ["-h" | "--help" | "help"] | ["train"] | ["train", "-h" | "--help"]:
            print(USAGE)
        case ["--version" | "-V" | "version", *_]:
            print(version())
        case [name, *flags] if name in ALGORITHMS:
            train(name, flags, prog=f"cleanba {name}")
        case [name, *flags] if name in PRESETS:
            train_preset(name, flags)
        case ["train", name, *flags] if name in PRESETS:
            train_preset(name, flags)
        case ["train", file, *flags]:
            train(file, flags, prog=f"cleanba train {file}")
        case [name, *flags] if name in COMMANDS:
            run_tool(name, flags)
        case [name, *_]:
            print(f"error: {unknown(name)}", file=sys.stderr)
            sys.exit(2)


def run_tool(name: str, flags: list[str]) -> None:
    from cleanba.runtime.command import importing

    with importing():
        module = import_module(COMMANDS[name][0])
    module.main(argv=flags, prog=f"cleanba {name}")


def version() -> str:
    from cleanba.runtime.code_version import code_version

    code = code_version()
    commit = f" ({code['commit'][:10]}{', changed' if code['changed'] else ''})" if "commit" in code else ""
    return f"cleanba {code.get('version', 'without a version')}{commit}"


def unknown(name: str) -> str:
    from difflib import get_close_matches

    if name.startswith("-"):
        return f"a command comes first, as in `cleanba ppo {name}`; `cleanba --help` lists all"
    if name.endswith(".py"):
        return f"there is no command {name!r}; did you mean `cleanba train {name}`?"
    near = get_close_matches(name, [*ALGORITHMS, *PRESETS, "train", *COMMANDS], n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "`cleanba --help` lists all"
    return f"there is no command {name!r}; {hint}"


def train(algorithm: str, flags: list[str], prog: str) -> None:
    from cleanba.runtime.command import command, importing

    with command(resumable=True):
        with importing(resumable=True):
            from cleanba.training.train import run_command

            module = load_algorithm(algorithm)
        default = getattr(module, "ARGS", None) or module.Args()
        purpose = (module.__doc__ or f"Train with {algorithm}.").strip().split("\n\n")[0]
        run_command(default, module.make_algorithm, description=purpose, argv=flags, prog=prog)


def train_preset(name: str, flags: list[str]) -> None:
    from cleanba.runtime.command import command, importing

    with command(resumable=True):
        with importing(resumable=True):
            preset = import_module(PRESETS[name])
        preset.main(preset.ARGS, argv=flags, prog=f"cleanba {name}", description=preset.__doc__)
