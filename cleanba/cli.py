"""The `cleanba` command."""

import sys

USAGE = """usage: cleanba COMMAND [flags]

commands:
  ppo     train with PPO
  impala  train with IMPALA
  launch  train with several processes on this machine
  eval    play with a trained model
  bench   measure how fast a run is here, and what limits it
  diff    compare two runs, update by update
  report  tables, figures and a page from many runs

cleanba COMMAND --help lists the flags."""


def main() -> None:
    match sys.argv[1:]:
        case ["ppo", *flags]:
            from cleanba import cleanba_ppo

            cleanba_ppo.main(argv=flags, prog="cleanba ppo")
        case ["impala", *flags]:
            from cleanba import cleanba_impala

            cleanba_impala.main(argv=flags, prog="cleanba impala")
        case ["launch", *flags]:
            from cleanba.sebulba import launch

            launch.main(flags)
        case ["eval", *flags]:
            from cleanba import cleanba_eval

            cleanba_eval.main(argv=flags, prog="cleanba eval")
        case ["bench", *flags]:
            from cleanba import cleanba_bench

            cleanba_bench.main(argv=flags, prog="cleanba bench")
        case ["diff", *flags]:
            from cleanba import cleanba_diff

            cleanba_diff.main(argv=flags, prog="cleanba diff")
        case ["report", *flags]:
            from cleanba import cleanba_report

            cleanba_report.main(argv=flags, prog="cleanba report")
        case [] | ["-h" | "--help"]:
            print(USAGE)
        case [command, *_]:
            sys.exit(_unknown(command))


def _unknown(command: str) -> int:
    print(f"cleanba: there is no command {command!r}\n\n{USAGE}", file=sys.stderr)
    return 2
