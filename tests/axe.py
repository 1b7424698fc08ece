"""axe-core in the browser of a test: what keeps people from using a page by keyboard, screen reader or with weak eyes.

Its script is taken once from a wheel of the package index, into .cache/axe, by uv.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tests.browser import Browser
from tests.installing import ROOT, UV

#: A wheel that holds the script. Nothing of what it needs is installed.
WHEEL: Final = "axe-playwright-python==0.1.8"
_FOLDER: Final = ROOT / ".cache/axe"
_SCRIPT: Final = _FOLDER / "axe_playwright_python/axe.min.js"

#: What axe-core finds in Django's own parts of each page: by its rule, a selector of the elements.
DJANGOS: Final = {
    "aria-input-field-name": ".select2-selection, .select2-selection__rendered",  # what it completes has the label
    "link-in-text-block": ".breadcrumbs a",
    "landmark-one-main": "html",
    "target-size": ":not(.ratelimiter-control *, .ratelimiter-usage *)",
}

#: All of the page is looked at; where a theme has drawn the rest of it, only what is ours.
_RUN: Final = """
const [djangos, themed, only] = arguments;
document.getAnimations().forEach(each => each.finish());  // colours on the way from one scheme to the other
const ours = [...document.querySelectorAll('.ratelimiter-control, .ratelimiter-usage, .ratelimiter-ask')];
const include = themed ? (ours.length ? ours : [document.querySelector('#content') ?? document.body]) : [document.body];
const known = (id, node) => djangos[id] && document.querySelector(node.target.at(-1))?.matches(djangos[id]);
const options = {preload: false, resultTypes: ['violations'], rules: {'target-size': {enabled: true}}};
if (only.length) Object.assign(options, {runOnly: only, rules: {}});
return axe.run({include}, options).then(found => found.violations
    .map(each => ({...each, nodes: each.nodes.filter(node => !known(each.id, node))}))
    .filter(each => each.nodes.length)
    .map(each => `${each.id} (${each.impact}): ${each.help}: `
        + each.nodes.map(node => node.html).slice(0, 3).join(' | ')));
"""


def source() -> str:
    """Return the script of axe-core; "" where it cannot be had, and why on the standard error stream."""
    if not _SCRIPT.exists():
        if UV is None:
            print("axe-core is not run: there is no uv.", file=sys.stderr)
            return ""
        install = (UV, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", _FOLDER, WHEEL)
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            print(f"axe-core is not run: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return ""
    return _SCRIPT.read_text("utf-8")


def faults_of(window: Browser, axe: str, *, themed: bool = False, only: Sequence[str] = ()) -> list[str]:
    """Return what axe-core finds in the page that is open. only: these rules; empty = all. themed: see `_RUN`."""
    if not window.script("return 'axe' in window"):  # half a megabyte
        window.script(axe)
    faults: list[str] = window.script(_RUN, DJANGOS, themed, list(only))
    window.complaints()  # axe-core's own: it writes styles into the page
    return faults
