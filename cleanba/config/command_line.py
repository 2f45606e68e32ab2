"""Command lines: flags from the fields of dataclasses, their help, and one line for what does not fit.

tyro makes the help and the values. What it would report in a box is looked for before, in `check_words`.
"""

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import operator
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from cleanba.config.errors import UsageError
from cleanba.config.flag_hints import hint

HELP = ("-h", "--help", "--tyro-")  # with one of these, nothing else on the line matters
MAX_WIDTH = 100  # of a description
Args = TypeVar("Args")


class Reader(NamedTuple):
    """How the words after a flag become its value."""

    metavar: str
    read: Callable[[str], Any]  # of one word; raises ValueError
    kind: str  # what a word has to be
    choices: tuple[str, ...] | None = None
    many: bool = False  # a tuple of such values
    size: int | None = None  # of exactly so many
    optional: bool = False  # None is a value, too

    def value(self, words: list[str]) -> Any:
        if self.many:
            return tuple(map(self.read, words))
        return None if self.optional and words == ["None"] else self.read(words[0])


class Flag(NamedTuple):
    name: str
    kind: Any  # its annotation
    help: str
    default: Any  # MISSING: it must be given

    @property
    def positional(self) -> bool:
        return tyro.conf.Positional in getattr(self.kind, "__metadata__", ())

    @property
    def is_switch(self) -> bool:
        kind = self.kind
        while get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        return kind is bool

    @property
    def reader(self) -> Reader | None:
        return reader_of(self.kind)

    def field(self) -> Any:
        """For make_dataclass."""
        hint = None if self.default is MISSING else self.default_hint()
        if self.default is MISSING and self.reader and self.reader.many:
            hint = "(one or more)"
        marks: list[Any] = [tyro.conf.arg(help=self.help, help_behavior_hint=hint)]
        if reader := self.reader:
            marks.append(_constructor(reader))
        kind: Any = operator.getitem(Annotated, (self.kind, *marks))
        return (self.name, kind) if self.default is MISSING else (self.name, kind, self.default)

    def default_hint(self) -> str:
        """Empty where the help text says what happens by default."""
        match self.default:
            case None | "" | ():
                return "" if re.search(r"\bdefault: ", self.help) else "(default: none)"
            case bool(on):
                return f"(default: {'on' if on else 'off'})"
            case tuple(values):
                return f"(default: {' '.join(map(str, values))})"
            case int(number) if number >= 10_000:
                return f"(default: {number:_})"
        return f"(default: {self.default})"

    def check(self, given: str, words: list[str]) -> None:
        """Refuse words that are no value of this flag."""
        reader = self.reader
        if reader is None:
            return
        if not words and not reader.many:
            raise UsageError(f"{given} needs a value: {given} {reader.metavar}")
        if reader.size is not None and len(words) != reader.size:
            raise UsageError(f"{given} needs {reader.size} values: {given} {reader.metavar}")
        for word in words:
            try:
                reader.value([word])
            except ValueError as error:
                raise UsageError(f"{given} {word} is not {error.args[0] or reader.kind}") from None


# ------------------------------------------------------------------------------------------------- values


def reader_of(kind: Any) -> Reader | None:
    """None for switches, and for kinds that no flag can have."""
    parts = get_args(kind)
    match get_origin(kind) or kind:
        case typing.Annotated:
            return reader_of(parts[0])
        case typing.Union | types.UnionType if len(parts) == 2 and types.NoneType in parts:
            reader = reader_of(next(part for part in parts if part is not types.NoneType))
            return reader and reader._replace(optional=True)
        case typing.Literal if all(type(part) in (str, int) for part in parts):
            choices = {str(part): part for part in parts}
            listed = f"one of {', '.join(choices)}"
            return Reader(
                f"{{{','.join(choices)}}}", functools.partial(_choose, choices), listed, tuple(choices)
            )
        case builtins.tuple if len({*parts} - {...}) == 1:
            one = reader_of(parts[0])
            if one is None or one.many or one.optional:
                return None
            if parts[-1] is ...:
                return one._replace(many=True, metavar=f"{one.metavar} ...")
            return one._replace(many=True, size=len(parts), metavar=" ".join([one.metavar] * len(parts)))
    return PLAIN.get(kind)


def whole_number(text: str) -> int:
    """1000000, 1_000_000, 1e6, 1M and 1m are the same."""
    scale = {"k": 3, "K": 3, "m": 6, "M": 6}.get(text[-1:], 0)
    try:
        number = Decimal(text[:-1] if scale else text).scaleb(scale)
    except ArithmeticError:  # no number, or a hopelessly large one
        raise ValueError("") from None
    if not number.is_finite() or number.adjusted() > 20 or number % 1:
        raise ValueError("")
    return int(number)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("") from None


def _choose(choices: dict[str, Any], text: str) -> Any:
    if text not in choices:
        raise ValueError("")
    return choices[text]


KINDS = "give it bool, int, float, str, Literal, one of these or None, or a tuple such as tuple[int, ...]"
PLAIN: dict[Any, Reader] = {
    int: Reader("INT", whole_number, "a whole number, such as 200000, 2e5 or 200k"),
    float: Reader("FLOAT", _float, "a number"),
    str: Reader("STR", str, "a text"),
    Path: Reader("PATH", Path, "a path"),
}


def _constructor(reader: Reader) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=reader.size or ("*" if reader.many else 1),
        metavar=reader.metavar,
        instance_from_str=reader.value,
        is_instance=lambda value: True,
        str_from_instance=lambda value: list(map(str, value)) if isinstance(value, tuple) else [str(value)],
        choices=reader.choices and (*reader.choices, *["None"][: reader.optional]),
    )


# ------------------------------------------------------------------------------------------ command lines


def parse_command(
    command: type[Args], *, description: str, argv: list[str] | None = None, prog: str | None = None
) -> Args:
    """The flags of a command with this dataclass of arguments."""
    flags = flags_of(command)
    check_words(flags, sys.argv[1:] if argv is None else argv, prog)
    made = dataclasses.make_dataclass(command.__name__, [flag.field() for flag in flags])
    given: Any = tyro.cli(made, args=argv, prog=prog, description=wrapped(description))
    return command(**{flag.name: getattr(given, flag.name) for flag in flags})


def flags_of(command: type) -> list[Flag]:
    fields = dataclasses.fields(command)
    kinds, helps = inspect.get_annotations(command, eval_str=True), help_texts(command)
    return [Flag(field.name, kinds[field.name], helps.get(field.name, ""), field.default) for field in fields]


def wrapped(description: str) -> str:
    """To the terminal's width, paragraph by paragraph. tyro joins lines that do not begin with a space."""
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    paragraphs = [" ".join(text.split()) for text in description.strip().split("\n\n")]
    return "\n\n".join(textwrap.fill(text, width, subsequent_indent=" ") for text in paragraphs)


@functools.cache
def help_texts(cls: type) -> dict[str, str]:
    """The strings below its fields."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError):  # made without a file
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        ast.unparse(above.target): " ".join(below.value.value.split())
        for above, below in itertools.pairwise(body.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def check_words(flags: list[Flag], argv: list[str], prog: str | None) -> None:
    """Refuse what is no flag, flags without a value, values that are none, and words too many or too few."""
    if any(word.startswith(HELP) for word in argv):
        return
    by_name = {flag.name: flag for flag in flags if not flag.positional}
    words = dict[str, list[str]]()  # that belong to no flag, by what is before them
    for given, values in _split(argv):
        if not given:
            words[""] = values
            continue
        name = given.lstrip("-").replace("-", "_")
        on = name.removeprefix("no_") if name not in by_name else name
        flag = by_name.get(on)
        is_switch = flag is not None and flag.is_switch
        if flag is None or (on != name and not is_switch):
            raise UsageError(hint(given, sorted(by_name), prog or Path(sys.argv[0]).name))
        many = flag.reader is not None and flag.reader.many
        own = None if is_switch or many else 1
        if is_switch:
            words[given] = values
        else:
            flag.check(given, values[:own])
            words[given] = values[own or len(values) :]
    if "env_id" in by_name and words.get("") and not any(flag.positional for flag in flags):
        raise UsageError(f"{words[''][0]!r} belongs to no flag; an environment is given by --env-id")
    _check_positional([flag for flag in flags if flag.positional], words, prog)
    for flag in by_name.values():
        if flag.default is MISSING and not any(_is_given(flag.name, word) for word in argv):
            raise UsageError(f"--{flag.name.replace('_', '-')} is missing; give {flag.help}")


def _split(argv: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words up to the next one; first the words before all flags, without one."""
    given, values = "", list[str]()
    for word in argv:
        if re.match(r"--?[^\W\d]", word):
            yield given, values
            given, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    yield given, values


def _is_given(name: str, word: str) -> bool:
    return word.partition("=")[0].lstrip("-").replace("-", "_") == name


def _check_positional(flags: list[Flag], words: dict[str, list[str]], prog: str | None) -> None:
    """`words` belong to no flag."""
    many = any(flag.reader and flag.reader.many for flag in flags)
    count = sum(map(len, words.values()))
    required = [flag.help for flag in flags if flag.default is MISSING]
    needed = " and ".join(required or [flag.help for flag in flags[:1]])
    if len(required) > 1 and len(set(required)) == 1:
        needed = f"{len(required)} {required[0]}s"
    if count < len(required) and not many:
        raise UsageError(f"{prog or 'this command'} needs {needed}")
    if count <= len(flags) or many:
        return
    given, extra = next((given, values) for given, values in reversed(words.items()) if values)
    if given and extra[0].lower() in ("true", "false", "0", "1"):
        switch = given.removeprefix("--no-").removeprefix("--")
        raise UsageError(f"{given} takes no value; give --{switch} or --no-{switch}")
    if flags:
        raise UsageError(f"unexpected argument {extra[-1]!r}; {prog or 'this command'} needs {needed}")
    raise UsageError(f"{extra[0]!r}{f' after {given}' if given else ''} belongs to no flag")
