"""Everything a report says, before it is drawn and written. Needs no matplotlib."""

from typing import NamedTuple

from cleanba.analysis.report.aggregates import (
    Aggregates,
    Improvements,
    NormalisedScores,
    aggregates,
    improvements,
    normalised_scores,
)
from cleanba.analysis.report.compare import Comparison
from cleanba.analysis.report.notes import Notes, notes


class Summary(NamedTuple):
    comparison: Comparison
    normalised: NormalisedScores
    aggregates: Aggregates
    improvements: Improvements
    notes: Notes


def summarize(comparison: Comparison) -> Summary:
    normalised = normalised_scores(comparison)
    found = notes(comparison, normalised)
    return Summary(comparison, normalised, aggregates(normalised), improvements(comparison), found)
