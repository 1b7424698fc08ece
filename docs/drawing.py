"""The pictures of the algorithms as SVG: narrow enough for a telephone, with colours for light and dark pages.

A picture is either a file of its own, or part of a page that has a switch for dark mode; the style serves both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from timelines import Run

WIDTH: Final = 560
LEFT, RIGHT = 30, 546

#: Half as wide as a dot is.
DOT: Final = 4.4
SMALL_DOT: Final = 3

LIGHT: Final = "--paper:#fff;--line:#d5dce3;--ink:#1f2933;--soft:#52606d;--yes:#1261b0;--no:#c2410c;--level:#0f766e"
DARK: Final = "--paper:#1b1e22;--line:#3a434d;--ink:#e6eaee;--soft:#a3b1bf;--yes:#74b6ff;--no:#ff9a6c;--level:#4fd1b5"
STYLE: Final = f"""
.timeline{{{LIGHT};font:11px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}
@media (prefers-color-scheme:dark){{.timeline:root,body:not([data-theme=light]) .timeline{{{DARK}}}}}
body[data-theme=dark] .timeline{{{DARK}}}
.timeline:not(:root){{width:100%;height:auto}}
.timeline text{{fill:var(--soft);paint-order:stroke;stroke:var(--paper);stroke-width:4px}}
.timeline .name{{fill:var(--ink);font-weight:600}}
.timeline .end{{text-anchor:end}} .timeline .mid{{text-anchor:middle}}
.timeline .paper{{fill:var(--paper);stroke:var(--line)}}
.timeline .rule{{stroke:var(--line);fill:none}} .timeline .edge{{stroke:var(--soft);stroke-dasharray:2 3}}
.timeline .yes{{fill:var(--yes)}} .timeline .held{{fill:var(--paper);stroke:var(--yes);stroke-width:1.6}}
.timeline .no{{stroke:var(--no);stroke-width:1.7;fill:none}} .timeline .way{{stroke:var(--yes);opacity:.45;fill:none}}
.timeline .one{{stroke:var(--level);opacity:.5;stroke-dasharray:1 3}}
.timeline .span{{stroke:var(--ink);fill:none;stroke-width:1.3}} .timeline text.busy{{fill:var(--ink)}}
.timeline .level{{stroke:var(--level);stroke-width:1.6;fill:none}} .timeline .under{{fill:var(--level);opacity:.16}}
.timeline .lease{{fill:var(--level);opacity:.75}} .timeline .lost{{fill:none;stroke:var(--level);stroke-dasharray:4 3}}
@media (max-width:500px){{.timeline{{font-size:17px}}}}
"""


class Picture:
    """Parts of a picture, one below the other. seconds: how long the axis is. dot: half as wide as a dot is."""

    def __init__(self, seconds: int, dot: float = DOT) -> None:
        self.parts: list[str] = []
        self.seconds = seconds
        self.size = dot

    def x(self, at: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * min(at, self.seconds) / self.seconds, 1)

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>')

    def path(self, kind: str, points: str) -> None:
        self.parts.append(f'<path class="{kind}" d="{points}"/>')

    def dot(self, kind: str, x: float, y: float) -> None:
        self.parts.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{self.size:g}"/>')

    def cross(self, x: float, y: float) -> None:
        arm = round(0.68 * self.size, 1)
        self.path("no", f"M{x - arm:g} {y - arm:g}l{2 * arm:g} {2 * arm:g}m0-{2 * arm:g}l-{2 * arm:g} {2 * arm:g}")

    def edges(self, edges: Iterable[float], top: float, bottom: float) -> None:
        for at in edges:
            self.path("edge", f"M{self.x(at):g} {top:g}V{bottom:g}")

    def axis(self, y: float) -> None:
        self.path("rule", f"M{LEFT} {y:g}H{RIGHT}")
        for at in range(0, self.seconds + 1, 5):
            self.text(self.x(at), y + 18, f"{at} s" if at else "0", "mid")

    def requests(self, run: Run, base: float, *, as_they_leave: bool = False) -> list[tuple[float, float]]:
        """Each request as it comes, those of one moment on top of each other; where each of them is drawn."""
        heights: Counter[float] = Counter()
        places = []
        for answer in run.answers:
            at = answer.leaves if as_they_leave and answer.allowed else answer.at
            x, y = self.x(at), round(base - self.size - 2 - 2.4 * self.size * heights[at], 1)
            heights[at] += 1
            places.append((x, y))
            if not answer.allowed:
                self.cross(x, y)
            else:
                self.dot("yes" if at == answer.leaves else "held", x, y)
        self.path("rule", f"M{LEFT} {base:g}H{RIGHT}")
        return places

    def busiest(self, run: Run, window: int, y: float, *, below: bool = False) -> None:
        """A bracket over or below the stretch in which most were let go."""
        most, first, last = run.busiest
        start = max((first + max(last - window, 0)) / 2, 0)
        left, right = self.x(start), self.x(start + window)
        arm = -5 if below else 5
        self.path("span", f"M{left:g} {y + arm:g}v{-arm}H{right:g}v{arm}")
        self.text((left + right) / 2, y + (17 if below else -5), f"{most} in {window} s", "mid busy")

    def level(self, run: Run, top: float, bottom: float) -> None:
        """What remains, as an area between none and the whole capacity."""
        height = (bottom - top) / run.capacity
        corners = [(self.x(at), round(bottom - level * height, 1)) for at, level in run.levels]
        line = "L".join(f"{x:g} {y:g}" for x, y in _simplified(corners))
        self.path("rule", f"M{LEFT} {top:g}H{RIGHT}")
        self.path("one", f"M{LEFT} {bottom - height:g}H{RIGHT}")
        self.path("under", f"M{line}V{bottom:g}H{LEFT}z")
        self.path("level", f"M{line}")
        self.text(LEFT - 7, top + 4, str(run.capacity), "end")
        self.text(LEFT - 7, bottom + 4, "0", "end")

    def leases(self, run: Run, top: float, bottom: float) -> None:
        """What is held, each lease in the first row that is free."""
        height, free = (bottom - top) / run.capacity, [0.0] * run.capacity
        for answer in run.answers:
            if answer.allowed:
                row = next(row for row, until in enumerate(free) if until <= answer.at)
                free[row] = answer.until
                left, right = self.x(answer.at), self.x(answer.until)
                kind = "lost" if answer is run.answers[0] else "lease"
                self.lease(kind, left, bottom - (row + 1) * height + 1.5, right - left - 1, height - 3)
        self.path("rule", f"M{LEFT} {top:g}H{RIGHT}")
        self.text(LEFT - 7, top + 4, str(run.capacity), "end")
        self.text(LEFT - 7, bottom + 4, "0", "end")

    def lease(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        size = f'width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size} rx="2"/>')

    def svg(self, name: str, height: float, title: str, told: str) -> str:
        """The whole, with what a screen reader says."""
        ids = f"{name}-title", f"{name}-told"
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {height:g}" '
                f'width="{WIDTH}" height="{height:g}" role="img" aria-labelledby="{" ".join(ids)}">',
                f'<title id="{ids[0]}">{escape(title)}</title>',
                f'<desc id="{ids[1]}">{escape(told)}</desc>',
                f"<style>{STYLE}</style>",
                f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>',
                *self.parts,
                "</svg>\n",
            )
        )


def timeline(run: Run, quota: int, window: int, seconds: int) -> str:
    """One algorithm: the requests, what came of them, and the level under it."""
    picture, leaky, leases = Picture(seconds), run.name == "leaky_bucket", run.name == "concurrency"
    base = 104 if leases or leaky else 140
    top = base + (118 if leaky else 36)
    bottom = top + 65
    picture.text(14, 25, f"{quota} {run.told}", "name")
    picture.text(RIGHT, 25, f"{_allowed(run)} of {len(run.answers)} allowed", "end")
    picture.edges(run.edges, 62, bottom)
    places = picture.requests(run, base)
    if leaky:
        _departures(picture, run, places, base + 40)
    if not leases:
        picture.busiest(run, window, base + 57 if leaky else 56, below=leaky)
    draw = picture.leases if leases else picture.level
    draw(run, top, bottom)
    picture.text(LEFT, top - 8, "in flight" if leases else "room in the queue" if leaky else "what remains")
    picture.axis(bottom)
    _legend(picture, bottom + 42, leaky, leases)
    return picture.svg(run.name, bottom + 58, f"Timeline of {run.name}", _told(run, window))


def _legend(picture: Picture, y: float, leaky: bool, leases: bool) -> None:
    picture.dot("yes", LEFT + 5, y - 4)
    picture.text(LEFT + 15, y, "leaves" if leaky else "allowed")
    picture.cross(LEFT + 115, y - 4)
    picture.text(LEFT + 125, y, "rejected")
    if leaky:
        picture.dot("held", LEFT + 217, y - 4)
        picture.text(LEFT + 227, y, "allowed, and delayed")
    if leases:
        picture.lease("lost", LEFT + 210, y - 9, 22, 9)
        picture.text(LEFT + 239, y, "its process was killed")


def _departures(picture: Picture, run: Run, places: Sequence[tuple[float, float]], y: float) -> None:
    """Draw where those that are delayed leave."""
    answers = zip(places, run.answers, strict=True)
    let_go = [(place, picture.x(answer.leaves)) for place, answer in answers if answer.allowed]
    for (x, from_y), leaves in let_go:
        picture.path("way", f"M{x:g} {from_y + DOT:g}L{leaves:g} {y:g}")
    for _, leaves in let_go:
        picture.dot("yes", leaves, y)


def comparison(runs: Sequence[Run], quota: int, window: int, seconds: int) -> str:
    """All algorithms below each other: what each lets go, and when."""
    picture, first, row = Picture(seconds, SMALL_DOT), 90, 86
    for number, run in enumerate(runs):
        base = first + row * number
        picture.text(14, base - 60, run.name, "name")
        most = f"at most {run.busiest[0]} in {window} s"
        picture.text(RIGHT, base - 60, f"{_allowed(run)} allowed, {most}", "end")
        picture.requests(run, base, as_they_leave=True)
    told = " ".join(
        f"{run.name}: {_allowed(run)} of {len(run.answers)} are allowed, at most {run.busiest[0]} in {window} s."
        for run in runs
    )
    last = first + row * (len(runs) - 1)
    picture.axis(last)
    _legend(picture, last + 42, False, False)
    return picture.svg("comparison", last + 58, f"All algorithms with the same requests, {quota} per {window} s", told)


def _allowed(run: Run) -> int:
    return sum(answer.allowed for answer in run.answers)


def _told(run: Run, window: int) -> str:
    """The picture in words."""
    asked = Counter(answer.at for answer in run.answers)
    passed = Counter(answer.at for answer in run.answers if answer.allowed)
    moments = "; ".join(f"{at:g} s: {passed[at]} of {asked[at]}" for at in asked)
    words = f"Of {len(run.answers)} requests {_allowed(run)} are allowed. At {moments}."
    held = sorted(answer.leaves for answer in run.answers if answer.allowed and answer.leaves > answer.at)
    if held:
        words += f" Those that are delayed leave at {', '.join(f'{at:g}' for at in held)} s."
    if run.name == "concurrency":
        return words
    return f"{words} No stretch of {window} s has more than {run.busiest[0]}."


def _simplified(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the points that lie on the line between their neighbours."""
    kept = [corners[0]]
    for here, after in zip(corners[1:], [*corners[2:], None], strict=True):
        if here == kept[-1]:
            continue
        if after is not None:
            (x0, y0), (x1, y1), (x2, y2) = kept[-1], here, after
            if abs((x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)) < 1 and x0 <= x1 <= x2:
                continue
        kept.append(here)
    return kept
