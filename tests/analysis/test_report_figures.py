"""How the figures of a report look."""

import numpy as np
import pytest

from cleanba.analysis.report import figures
from cleanba.analysis.report.aggregates import Band


def test_texts_of_a_figure_are_not_rounded():
    svg = '<path d="M 1.23456 7.89012"/><!-- 0.00025 --><text x="1.5">0.00025\n0.125</text><text>1.234</text>'
    assert figures.round_coordinates(svg) == svg.replace("1.23456 7.89012", "1.23 7.89")


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.5, "0.5"), (-0.25, "−0.25"), (0, "0"), (999, "999"), (1500, "1.5k"), (2e6, "2M"), (-21, "−21")],
)
def test_tick_labels(x, text):
    assert figures.tick_label(x) == text


def test_incomplete_runs_and_far_published_scores_do_not_flatten_curves():
    """An incomplete run ten times as long; published scores that are near, far above and far below."""
    x = np.array([0.0, 100.0])
    panel = figures.Panel(
        "Breakout",
        {"ppo": Band(x, x / 100, x / 100, x / 100)},
        {},
        {"ppo": [(10 * x, x / 100)]},
        {"near": (1.5, 1.5), "far": (400.0, 400.0), "below": (-450.0, -400.0)},
    )
    looks = {name: figures.Look.of_group(i) for i, name in enumerate(["ppo", "near", "far", "below"])}
    (axes,) = figures.curves_of_game(panel, looks, figures.STEPS).axes
    assert axes.get_xlim() == (0, 104)
    assert -1 < axes.get_ylim()[0] < axes.get_ylim()[1] < 2
    assert [text.get_text() for text in axes.texts] == ["↑ 400 far", "↓ −450 to −400 below"]


@pytest.mark.parametrize(
    ("seconds", "axis"),
    [(119, ("wall time, seconds", 1)), (120, ("wall time, minutes", 60)), (7200, ("wall time, hours", 3600))],
)
def test_the_time_axis_has_a_unit_that_suits_the_longest_run(seconds, axis):
    assert figures.time_axis(seconds) == axis


def test_many_groups_look_different():
    assert len({figures.Look.of_group(i) for i in range(21)}) == 21
