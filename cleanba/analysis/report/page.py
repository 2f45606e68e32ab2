"""The page of a report: one HTML file that needs no other."""

import itertools
import math
import re
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from cleanba.analysis.report.figures import Looks
from cleanba.analysis.report.summary import Summary
from cleanba.analysis.report.tables import Table, Value, text_value
from cleanba.records.row import RECENT_GAMES

HERE = Path(__file__).parent
PILLS = {"State", "Standing"}  # columns shown as coloured labels
LONG = {"Folder", "Damage"}  # columns that may wrap
MANY_GAMES = 6  # more get a search field
UNQUOTED = " !$'()*+,/:;=?@[]^_`{|}~"  # safe in a data URL in an attribute

CAPTIONS = {
    "aggregates": "Median and mean: of the games' mean scores. IQM, the interquartile mean: the mean of all "
    "runs without the best and the worst quarter. Optimality gap: how far runs fall short of a human on "
    "average; lower is better.",
    "profiles": "Performance profiles: the share of runs that score more than τ. Higher is better.",
    "efficiency": "Sample efficiency: the interquartile mean (IQM) during training.",
    "improvement": "Probability of improvement: how often a run of the first group scores higher than a run "
    "of the second on the same game, averaged over the games that both have. Right of the dashed line, the "
    "first group is better. Where every run of one group beats every run of the other, the interval follows "
    "from the numbers of runs alone (Newcombe 2006).",
}
INTRODUCTIONS = {
    "settings": "The flags that differ between runs, and the code and the hardware that the runs used. A + "
    "after a commit: the code had uncommitted changes. If the runs of a group differ, all values are given, "
    "separated by /.",
    "runs": "Scores are computed from the runs that are marked as counts: the complete ones. If several runs "
    "have the same group, game and seed, only one counts, a complete one if there is any, and of those the "
    "last by the folder's name; the others are marked as repeated.",
}


class Image(NamedTuple):
    name: str  # of its files, without suffix
    svg: str
    alt: str

    def tag(self, kind: str = "") -> str:
        """With its size, so that the page does not shift when the image is loaded."""
        points = re.search(r'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', self.svg)
        assert points
        size = f'width="{float(points[1]):.0f}" height="{float(points[2]):.0f}"'
        source = f"data:image/svg+xml,{quote(self.svg, safe=UNQUOTED)}"
        return f'<img class="{kind}" {size} loading="lazy" alt="{escape(self.alt)}" src="{source}">'

    def links(self) -> str:
        name = quote(f"figures/{self.name}")
        return f'<a href="{name}.png">PNG</a> <a href="{name}.svg">SVG</a>'


class Page(NamedTuple):
    summary: Summary
    looks: Looks
    cards: dict[str, tuple[Image, Image]]  # by game: its curves over steps and over time
    images: dict[str, Image]  # by name, including those of the cards
    tables: dict[str, Table]
    made: str  # date and version

    def html(self) -> str:
        sections = {
            "overview": ("Overview", self._overview()),
            "notes": ("Caveats", self._notes()),
            "aggregates": ("Over all games", self._aggregates()),
            "curves": ("Curves", self._curves()),
            "scores": ("Scores", self._scores()),
            "settings": ("What was compared", self._text_and_table(INTRODUCTIONS["settings"], "settings")),
            "runs": ("Runs", self._text_and_table(INTRODUCTIONS["runs"], "runs")),
        }
        groups = self.summary.comparison.groups
        parts = {
            "title": escape(" · ".join(groups) if len(groups) <= 4 else f"{len(groups)} groups"),
            "made": escape(self.made),
            "episodes": str(RECENT_GAMES),
            "links": "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items()),
            "sections": "\n".join(
                f'<section id="{name}" data-axis="steps"><h2>{title}</h2>{content}</section>'
                for name, (title, content) in sections.items()
            ),
            "css": (HERE / "page.css").read_text(),
            "js": (HERE / "page.js").read_text(),
        }
        template = (HERE / "page.html").read_text()
        return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], template)

    # -------------------------------------------------------------------------------------------- sections

    def _overview(self) -> str:
        comparison = self.summary.comparison
        runs, games = len(comparison.listed), len(comparison.games)
        at = f", compared at {comparison.steps:,} steps" if comparison.steps else ""
        by = " and ".join(comparison.group_by)
        text = (
            f"{_plural(runs, 'run')} on {_plural(games, 'game')}{at}. Runs with the same {by} form a group."
        )
        tiles = "".join(self._tile(index, group) for index, group in enumerate(comparison.groups))
        return f'<p>{escape(text)}</p><div class="tiles">{tiles}</div>'

    def _tile(self, index: int, group: str) -> str:
        scores = self.tables["scores"]
        column = scores.header.index(group)
        training = [scores.header.index(name) for name in self.summary.comparison.groups]
        contested = [row for row in scores.rows if any(row[i].is_best for i in training)]
        row = self.tables["groups"].rows[index]
        facts = {"complete runs": row[2].text, "steps/s": row[3].text}
        if len(self.summary.comparison.groups) > 1:
            won = sum(game_row[column].is_best for game_row in contested)
            facts["best score on"] = f"{won} of {_plural(len(contested), 'game')}"
        entries = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in facts.items())
        headline = ""
        if group in self.summary.aggregates:
            value, low, high = self.summary.aggregates[group]["iqm"]
            text = f"human-normalised IQM over {_plural(len(self.summary.normalised.games), 'game')}"
            text += f", 95 % interval {low:.2f} to {high:.2f}" if high > low else ""
            headline = f'<div class="big">{value:.2f}</div><div class="small">{text}</div>'
        return (
            f'<div class="tile" style="--color:{self.looks[group].color}"><h3>{escape(group)}</h3>{headline}'
            f"<dl>{entries}</dl></div>"
        )

    def _notes(self) -> str:
        if not self.summary.notes:
            text = "All runs are complete, no seed is missing, nothing was left out."
            return f'<div class="notes fine">{text}</div>'
        entries = "".join(
            f'<details><summary><span class="count">{len(lines)}</span>{escape(heading)}</summary>'
            f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul></details>"
            for heading, lines in self.summary.notes.items()
        )
        return f'<div class="notes">{entries}</div>'

    def _aggregates(self) -> str:
        normalised = self.summary.normalised
        if normalised.games:
            games = _plural(len(normalised.games), "game")
            text = f"Human-normalised scores over {games}: 0 is a random agent, 1 a human."
            if normalised.left_out:
                left_out = _plural(len(normalised.left_out), "other game")
                text += f' {left_out} had to be left out, see "Caveats".'
        else:
            text = (
                "Human-normalised scores are computed for Atari games of which every group has a complete "
                "run. There is none here."
            )
        shown = "".join(
            f'<figure class="figure">{self.images[name].tag()}'
            f"<figcaption>{caption} {self.images[name].links()}</figcaption></figure>"
            for name, caption in CAPTIONS.items()
            if name in self.images
        )
        tables = [self._table(self.tables[n]) for n in ("aggregates", "improvement") if n in self.tables]
        return f'<p>{text}</p><div class="figures">{shown}</div>{"".join(tables)}'

    def _curves(self) -> str:
        groups, published = self.summary.comparison.groups, self.summary.comparison.published
        has_area = len(self.looks) > len(groups) + len(published)  # instead of a line for each system
        legend = "".join(
            f'<span><i class="key" style="border-color:{look.color};border-top-style:{look.dash}"></i>'
            f"{escape(who)}</span>"
            for who, look in self.looks.items()
            if who not in published or not has_area
        )
        search = '<input id="filter" type="search" placeholder="find a game" aria-label="find a game">'
        switch = (
            '<div class="switch" role="group" aria-label="horizontal axis">'
            '<button value="steps" aria-pressed="true">steps</button>'
            '<button value="time" aria-pressed="false">wall time</button></div>'
        )
        cards = "".join(
            f'<button class="card" data-game="{escape(game)}" aria-label="{escape(game)}, enlarge">'
            f"{steps.tag('steps')}{time.tag('time')}</button><template>{self._details(game)}</template>"
            for game, (steps, time) in self.cards.items()
        )
        text = (
            f"The mean return of the last {RECENT_GAMES} episodes. A line is the mean over a group's seeds, "
            "drawn as far as every seed has come; the area around it is the 95 % interval, or that from the "
            "lowest to the highest of three seeds or fewer."
        )
        if len(self.cards) == 1:
            ((steps, time),) = self.cards.values()
            figure = f'<figure class="figure large">{steps.tag("steps")}{time.tag("time")}</figure>'
            files = f'<p class="files">over steps: {steps.links()}, over wall time: {time.links()}</p>'
            return f'<p>{text}</p><div class="bar">{switch}</div>{figure}{files}'
        search *= len(self.cards) > MANY_GAMES
        few = " few" * (len(self.cards) <= MANY_GAMES)
        return (
            f"<p>{text} Click a game to enlarge it. All games in one figure: "
            f'{self.images["overview"].links()}</p><div class="bar">{switch}{search}'
            f'<div class="legend">{legend}</div></div><div class="cards{few}">{cards}</div>'
        )

    def _details(self, game: str) -> str:
        """Shown below the curves in the enlarged view of a game."""
        table = self.tables["scores"]
        (game_row,) = (row for row in table.rows if row[0].text == game)
        rows = [[text_value(who), value] for who, value in zip(table.header[1:], game_row[1:], strict=True)]
        steps, time = self.cards[game]
        files = f"over steps: {steps.links()}, over wall time: {time.links()}"
        return f'{self._table(Table("", ["", "Score"], rows))}<p class="files">{files}</p>'

    def _scores(self) -> str:
        comparison = self.summary.comparison
        text = (
            f"Mean return of the last {RECENT_GAMES} training episodes; mean over seeds ± standard deviation."
        )
        if any(len(cell.evaluations) for cell in comparison.cells.values()):
            text += " Evaluation: the same of the episodes that the saved models played after training."
        if len(comparison.groups) > 1:
            text += " The best group is bold."
        if comparison.published:
            text += " In italics: published scores, not runs of this report."
        if comparison.source:
            text += f" Source: {escape(comparison.source)}"
        return self._text_and_table(text, "scores")

    def _text_and_table(self, text: str, name: str) -> str:
        return f"<p>{text}</p>{self._table(self.tables[name])}"

    def _table(self, table: Table) -> str:
        """Sortable and with links to its files, if it has a name. On the page, without empty columns."""
        filled = [
            name == "Game" or any(row[i].text not in ("", "–") or row[i].small for row in table.rows)
            for i, name in enumerate(table.header)
        ]
        rows = [[*itertools.compress(row, filled)] for row in table.rows]
        table = Table(table.name, [*itertools.compress(table.header, filled)], rows)
        published = [name in self.summary.comparison.published for name in table.header]
        first = zip(table.header, table.rows[0] if table.rows else [], strict=False)
        texts = {name for name, value in first if isinstance(value.sort, str)}
        head = "".join(
            f'<th scope="col"{_class("published" * is_published + " text" * (name in texts))}>'
            + (f"<button>{escape(name)}</button>" if table.name and name else escape(name))
            + "</th>"
            for name, is_published in zip(table.header, published, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(_cell(*c) for c in zip(row, table.header, published, strict=True)) + "</tr>"
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


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
