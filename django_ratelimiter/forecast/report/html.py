"""The report of a replay as one HTML file, with charts in SVG. It loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from django.utils.translation import get_language, get_language_bidi
from django.utils.translation import gettext as _

from ..blind_spots import rules_left_out
from ..changes import Change
from ..comparison import ReplayReport
from .text import (
    agreement_table,
    callers_table,
    change_table,
    check_in_words,
    notes_of,
    summary_of,
    tables_of,
    traffic_of,
)

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --paper: #fff; --same: #8c959f;
  --newly: #b42318; --better: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9da7b3; --line: #3d444d; --paper: #0d1117;
  --same: #6e7681; --newly: #ff7b72; --better: #3fb950; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1rem;
  max-width: 70rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; min-width: 30rem; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: start; overflow-wrap: anywhere; }
td.number, th.number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.same { fill: var(--same); } .newly { fill: var(--newly); } .better { fill: var(--better); }
.axis { stroke: var(--line); } .legend span { margin-inline-end: 1.5rem; }
.key { display: inline-block; width: .8em; height: .8em; margin-inline-end: .4em; }
"""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 220, 60, 30


def html_of(report: ReplayReport) -> str:
    """Return the page."""
    return "\n".join(_page(report))


def _page(report: ReplayReport) -> Iterator[str]:
    is_difference = report.after is not None
    title = _("What the change would have done") if is_difference else _("What the rules would have done")
    direction = "rtl" if get_language_bidi() else "ltr"
    yield f'<!doctype html><html lang="{escape(get_language() or "en")}" dir="{direction}"><head><meta charset="utf-8">'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    yield f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    yield f"<p>{escape(traffic_of(report))}</p>"
    yield from _list(summary_of(report))
    yield f"<h2>{escape(_('By hour (UTC)'))}</h2>"
    yield from _chart(report.changes.by["hour"], is_difference=is_difference)
    if notes := notes_of(report):
        yield f"<h2>{escape(_('What the numbers leave out'))}</h2>"
        yield from _list(notes)
    yield f"<h2>{escape(_('Self-check'))}</h2>"
    yield from _list(check_in_words(report.check))
    if report.check is not None:
        yield from _table(list(agreement_table(report.check)))
    for name, rows in tables_of(report):
        if rows:
            yield f"<h2>{escape(name)}</h2>"
            yield from _table(list(change_table(name, rows, is_difference=is_difference, most=len(rows))))
        if rows is report.changes.by["rule"] and report.left_out:
            yield from _list(rules_left_out(report.left_out))
    if is_difference and report.changes.top:
        yield f"<h2>{escape(_('Callers who are newly rejected, those with most such requests first'))}</h2>"
        yield from _table(list(callers_table(report.changes.top)))
    yield "</main></body></html>"


def _list(sentences: Sequence[str] | Iterator[str]) -> Iterator[str]:
    yield f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in sentences)}</ul>"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    head, *body = rows
    numeric = [all(row[column][:1].isdigit() or not row[column] for row in body) for column in range(len(head))]
    kinds = [' class="number"' if each and column else "" for column, each in enumerate(numeric)]
    cells = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(head, kinds, strict=True))
    yield f'<div class="wide" tabindex="0"><table><thead><tr>{cells}</tr></thead><tbody>'
    for row in body:
        first, *others = zip(row, kinds, strict=True)
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in others)
        yield f'<tr><th scope="row">{escape(first[0])}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _chart(hours: Mapping[str, Change], *, is_difference: bool) -> Iterator[str]:
    """Yield bars: rejected by both, newly, and no longer; or all that are rejected."""
    bars = list(_bars(hours, is_difference))
    most = max([sum(parts) for _name, parts in bars], default=0) or 1
    words = _("Rejected requests by hour; the table below has the numbers.")
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(words)}">'
    room, width = _HEIGHT - _BOTTOM - 10, (_WIDTH - _LEFT) / max(len(bars), 1)
    yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{room + 10}" y2="{room + 10}"/>'
    yield f'<text x="{_LEFT - 6}" y="20" text-anchor="end">{most:,}</text>'
    yield f'<text x="{_LEFT - 6}" y="{room + 10}" text-anchor="end">0</text>'
    every = max(1, len(bars) // 8)
    for number, (name, parts) in enumerate(bars):
        left, top = _LEFT + number * width, float(room + 10)
        title = escape(f"{name}: " + ", ".join(f"{part:,}" for part in parts))
        yield f"<g><title>{title}</title>"
        for kind, part in zip(("same", "newly", "better"), parts, strict=False):
            height = part * room / most
            top -= height
            yield (
                f'<rect class="{kind}" x="{left + 1:.1f}" y="{top:.1f}" width="{max(width - 2, 1):.1f}" '
                f'height="{height:.1f}"/>'
            )
        yield "</g>"
        if number % every == 0:
            yield f'<text x="{left:.1f}" y="{_HEIGHT - 8}">{escape(name[5:])}</text>'
    yield "</svg>"
    names = [(_("rejected by both"), "same"), (_("newly rejected"), "newly"), (_("no longer rejected"), "better")]
    yield '<p class="legend">'
    for text, kind in names if is_difference else [(_("rejected"), "same")]:
        key = f'<svg class="key" viewBox="0 0 1 1"><rect class="{kind}" width="1" height="1"/></svg>'
        yield f"<span>{key}{escape(text)}</span>"
    yield "</p>"


def _bars(rows: Mapping[str, Change], is_difference: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, row in rows.items():
        if is_difference:
            yield name, (row.before - row.no_longer, row.newly, row.no_longer)
        else:
            yield name, (row.before,)
