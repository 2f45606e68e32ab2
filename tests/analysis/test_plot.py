"""`cleanba plot`: what is drawn, and what is refused."""

import math

import pytest
from helpers.report import make_run, row
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cleanba import cleanba_plot


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, out, **_: figures.append(figure))
    monkeypatch.setattr("cleanba.records.plot.atomic_write", lambda path, data: None)
    return figures


def plot(*argv):
    cleanba_plot.main([str(arg) for arg in argv])


def lines(figure):
    (axes,) = figure.axes
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def test_a_line_for_each_run(tmp_path, drawn, capsys):
    a = make_run(tmp_path, "Breakout-v5", returns=[1.0, 4.0, 9.0], name="a")
    b = make_run(tmp_path, "Breakout-v5", returns=[5.0, 6.0], name="b")
    plot(a, b, "--out", tmp_path / "curves.png")
    (figure,) = drawn
    assert capsys.readouterr().out == f"{tmp_path / 'curves.png'}\n"
    assert lines(figure) == {"a": [[100, 1], [200, 4], [300, 9]], "b": [[100, 5], [200, 6]]}
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "return (mean of the last 100 episodes)"


def test_labels_replace_the_names_of_folders(tmp_path, drawn):
    runs = [make_run(tmp_path, "Breakout-v5", seed=seed) for seed in (1, 2)]
    plot(*runs, "--labels", "first", "second")
    assert list(lines(drawn[0])) == ["first", "second"]


def test_a_curve_of_few_points_is_visible(tmp_path, drawn):
    """A line through one point would be invisible, and so has markers."""
    for returns, marker in (([1.0], "."), ([1.0, 2.0], "."), ([1.0, 2.0, 3.0], "")):
        plot(make_run(tmp_path, "Breakout-v5", returns=returns, name=f"run-{len(returns)}"))
        (line,) = drawn[-1].axes[0].lines
        assert line.get_marker() == marker


def test_rows_without_a_return_and_damaged_lines_are_skipped(tmp_path, drawn):
    run = make_run(tmp_path, "Breakout-v5", name="run")
    no_episode_yet = '{"update": 1, "global_step": 100, "seconds": 2}\n'
    text = no_episode_yet + row(2, 5.0) + "nonsense\n" + row(4, 7.0) + row(5, 8.0)[:-20]
    odd = [row(3, value) for value in (None, "x", math.nan, 1e308, [1.0], 10**400)]
    (run / "metrics.jsonl").write_text("".join(odd) + text)
    plot(run)
    assert lines(drawn[0]) == {"run": [[200, 5], [400, 7]]}


def test_a_file_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, "Breakout-v5", name="run")
    plot("run")
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    plot("run", "--out", "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    assert capsys.readouterr().out == "learning_curve.png\ncurve.svg\n"


def test_a_name_is_no_formula(tmp_path, drawn):
    names = [r"$\frac{$", "a$x$"]
    plot(*(make_run(tmp_path, "Breakout-v5", name=name) for name in names))
    FigureCanvasAgg(drawn[0]).draw()
    texts = drawn[0].axes[0].get_legend().get_texts()
    assert [(text.get_text(), text.get_parse_math()) for text in texts] == [(name, False) for name in names]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "no run given; give run folders, e.g. runs/*"),
        ("run nowhere", "nowhere is not a run folder: it has no metrics.jsonl"),
        ("run run --labels one", "--labels has 1 names for 2 runs; give one for each"),
        (
            "run --out nowhere/curve.png",
            "--out nowhere/curve.png cannot be written (No such file or directory)",
        ),
        ("run --out curve.xyz", "--out curve.xyz has no known format; end it with .png, .svg or .pdf"),
        ("run --out curve", "--out curve has no known format"),
    ],
)
def test_bad_input_is_refused(argv, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, "Breakout-v5", name="run")
    with pytest.raises(SystemExit) as exit:
        plot(*argv.split())
    assert exit.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
