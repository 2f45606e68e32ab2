"""The page of a report: one HTML file with everything in it."""

import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cleanrl_utils.report.compare import Comparison, OverGames
from cleanrl_utils.report.figures import Looks
from cleanrl_utils.report.tables import Table, Value, words
from cleanrl_utils.statistics import Estimate

HERE = Path(__file__).parent
PILLS = {"State", "Standing"}  # columns whose words are shown in a colour
LONG = {"Folder", "Damage"}  # columns that may wrap
MANY_GAMES = 6  # more are searched
PLAIN = " !$'()*+,/:;=?@[]^_`{|}~"  # characters that need no code in a data URL in an attribute

CAPTIONS = {
    "aggregates": "Median and mean are over games, the interquartile mean (IQM) and the optimality gap over "
    "runs. The gap is what runs lack to a human score on average: lower is better.",
    "profiles": "Performance profiles: the share of runs that score more than τ.",
    "efficiency": "Sample efficiency: the interquartile mean against frames.",
    "improvement": "Probability of improvement, mean over the games that both groups have: beyond the dashed "
    "line a run of the left group is more likely to win.",
}


class Picture(NamedTuple):
    name: str  # of its files, without suffix
    svg: str
    alt: str

    def image(self, kind: str = "") -> str:
        """It has its place on the page before it is drawn."""
        width, height = (
            re.search(rf'<svg[^>]* {name}="([\d.]+)pt"', self.svg) for name in ("width", "height")
        )
        assert width and height
        size = f'width="{float(width[1]):.0f}" height="{float(height[1]):.0f}"'
        source = f"data:image/svg+xml,{quote(self.svg, safe=PLAIN)}"
        return f'<img class="{kind}" {size} loading="lazy" alt="{escape(self.alt)}" src="{source}">'

    def links(self) -> str:
        name = quote(f"figures/{self.name}")
        return f'<a href="{name}.png">PNG</a> <a href="{name}.svg">SVG</a>'


class Card(NamedTuple):
    """A game: its curves over steps and over time."""

    game: str
    steps: Picture
    time: Picture


class Page(NamedTuple):
    comparison: Comparison
    over: OverGames
    aggregates: dict[str, dict[str, Estimate]]
    problems: dict[str, list[str]]
    looks: Looks
    cards: list[Card]
    pictures: dict[str, Picture]  # by name, also those of the cards
    tables: dict[str, Table]
    made: str  # when, and by which version

    def html(self) -> str:
        sections = {
            "overview": ("Overview", self._overview()),
            "notes": ("What to know", self._notes()),
            "aggregates": ("Over all games", self._aggregates()),
            "curves": ("Curves", self._curves()),
            "scores": ("Scores", self._scores()),
            "settings": ("What was compared", self._settings()),
            "runs": ("Runs", self._runs()),
        }
        groups = self.comparison.groups
        parts = {
            "title": escape(" · ".join(groups) if len(groups) <= 4 else f"{len(groups)} groups"),
            "made": escape(self.made),
            "links": "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items()),
            "sections": "\n".join(
                f'<section id="{name}" data-axis="steps"><h2>{title}</h2>{content}</section>'
                for name, (title, content) in sections.items()
            ),
            "css": (HERE / "page.css").read_text(),
            "js": (HERE / "page.js").read_text(),
        }
        first, *rest = (HERE / "page.html").read_text().split("{{")
        filled = [parts[name] + text for name, text in (part.split("}}", 1) for part in rest)]
        return "".join([first, *filled])

    # -------------------------------------------------------------------------------------------- sections

    def _overview(self) -> str:
        comparison = self.comparison
        runs, games = len(comparison.listed), len(comparison.games)
        at = f", compared at {comparison.steps:,} steps" if comparison.steps else ""
        said = f"{_many(runs, 'run')} of {_many(games, 'game')}, grouped by {', '.join(comparison.by)}{at}."
        tiles = "".join(self._tile(index, group) for index, group in enumerate(comparison.groups))
        return f'<p>{escape(said)}</p><div class="tiles">{tiles}</div>'

    def _tile(self, index: int, group: str) -> str:
        column = 1 + index
        shared = [row for row in self.tables["scores"].rows if any(value.is_best for value in row)]
        row = self.tables["groups"].rows[index]
        facts = {"runs that count": row[2].text, "steps/s": row[3].text}
        if len(self.comparison.groups) > 1:
            won = sum(of_game[column].is_best for of_game in shared)
            facts["highest mean"] = f"{won} of {_many(len(shared), 'game')}"
        entries = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items())
        headline = ""
        if group in self.aggregates:
            value, low, high = self.aggregates[group]["iqm"]
            said = f"IQM × human over {_many(len(self.over.games), 'game')}"
            said += f", {low:.2f} to {high:.2f}" if high > low else ""
            headline = f'<div class="big">{value:.2f}</div><div class="small">{said}</div>'
        return (
            f'<div class="tile" style="--color:{self.looks[group].color}"><h3>{escape(group)}</h3>{headline}'
            f"<dl>{entries}</dl></div>"
        )

    def _notes(self) -> str:
        if not self.problems:
            fine = "All runs are complete, no seed is missing, nothing was left out."
            return f'<div class="notes fine">{fine}</div>'
        entries = "".join(
            f'<details><summary><span class="count">{len(lines)}</span>{escape(kind)}</summary>'
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul></details>"
            for kind, lines in self.problems.items()
        )
        return f'<div class="notes">{entries}</div>'

    def _aggregates(self) -> str:
        if self.over.games:
            games = _many(len(self.over.games), "game")
            said = f"Human-normalised scores over {games}: 0 is a random agent, 1 a human."
            if self.over.left_out:
                said += f" {_many(len(self.over.left_out), 'other game')} had to be left out, see above."
        else:
            said = (
                "No game has a human score and a complete run of each group, so no scores can be normalised."
            )
        shown = "".join(
            f'<figure class="figure{" wide" * (name == "aggregates")}">'
            f'<div class="pan">{self.pictures[name].image()}</div>'
            f"<figcaption>{text} {self.pictures[name].links()}</figcaption></figure>"
            for name, text in CAPTIONS.items()
            if name in self.pictures
        )
        tables = [self._table(self.tables[n]) for n in ("aggregates", "improvement") if n in self.tables]
        return f'<p>{said}</p><div class="figures">{shown}</div>{"".join(tables)}'

    def _curves(self) -> str:
        legend = "".join(
            f'<span><i class="key" style="border-color:{look.color};border-top-style:{look.dash}"></i>'
            f"{escape(who)}</span>"
            for who, look in self.looks.items()
        )
        search = '<input id="filter" type="search" placeholder="find a game" aria-label="find a game">'
        switch = (
            '<div class="switch" role="group" aria-label="horizontal axis">'
            '<button value="steps" aria-pressed="true">steps</button>'
            '<button value="time" aria-pressed="false">wall time</button></div>'
        )
        cards = "".join(
            f'<button class="card" data-game="{escape(card.game)}" aria-label="{escape(card.game)}, enlarge">'
            f"{card.steps.image('steps')}{card.time.image('time')}</button>"
            f"<template>{self._details(card)}</template>"
            for card in self.cards
        )
        return (
            "<p>Mean return of the last 100 games, averaged over seeds where all of them are, with 95 % "
            "intervals. Click a game to see it large. All games in one figure: "
            f'{self.pictures["overview"].links()}</p><div class="bar">{switch}'
            f'{search * (len(self.cards) > MANY_GAMES)}<div class="legend">{legend}</div></div>'
            f'<div class="cards">{cards}</div>'
        )

    def _details(self, card: Card) -> str:
        """What the large view of a game has besides its curves."""
        table = self.tables["scores"]
        (of_game,) = (row for row in table.rows if row[0].text == card.game)
        rows = [[words(who), value] for who, value in zip(table.header[1:], of_game[1:], strict=True)]
        files = f"over steps: {card.steps.links()}, over wall time: {card.time.links()}"
        return f'{self._table(Table("", ["", "Score"], rows))}<p class="files">{files}</p>'

    def _scores(self) -> str:
        best = " The best group is bold." * (len(self.comparison.groups) > 1)
        published = " Columns in italics are published scores, not runs." * bool(self.comparison.published)
        said = f"Mean over seeds ± standard deviation.{best}{published}"
        return f"<p>{said}</p>{self._table(self.tables['scores'])}"

    def _settings(self) -> str:
        said = "Flags that differ, and where it ran. A commit with + had changes; a / is within a group."
        return f"<p>{said}</p>{self._table(self.tables['settings'])}"

    def _runs(self) -> str:
        said = (
            "Only complete runs count. Of several with the same group, game and seed it is a complete one, "
            "the last by the name of its folder; the others are repeated."
        )
        return f"<p>{said}</p>{self._table(self.tables['runs'])}"

    def _table(self, table: Table) -> str:
        """With links to its files, if it has a name; then it can be sorted, too."""
        published = [name in self.comparison.published for name in table.header]
        first = zip(table.header, table.rows[0] if table.rows else [], strict=False)
        texts = {name for name, value in first if isinstance(value.sort, str)}
        head = "".join(
            f'<th scope="col"{_class("published" * is_published + " text" * (name in texts))}>'
            + (f"<button>{escape(name)}</button>" if table.name and name else escape(name))
            + "</th>"
            for name, is_published in zip(table.header, published, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(_cell(*of) for of in zip(row, table.header, published, strict=True)) + "</tr>"
            for row in table.rows
        )
        whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        file = f"tables/{table.name}"
        files = f'<p class="files"><a href="{file}.csv">CSV</a> <a href="{file}.md">Markdown</a></p>'
        label = f'role="region" aria-label="table of {table.name or "scores"}"'
        return f'<div class="scroll" tabindex="0" {label}>{whole}</div>{files * bool(table.name)}'


def _cell(value: Value, column: str, published: bool) -> str:
    sort = "" if value.sort == -math.inf else escape(str(value.sort))
    text = escape(value.text)
    if column in PILLS:
        text = f'<span class="state {escape(value.text.split()[0])}">{text}</span>'
    kinds = ["best"] * value.is_best + ["published"] * published + ["long"] * (column in LONG)
    kinds += ["text"] * isinstance(value.sort, str)
    small = f'<span class="small">{escape(value.small)}</span>' if value.small else ""
    return f'<td data-sort="{sort}"{_class(" ".join(kinds))}>{text}{small}</td>'


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
