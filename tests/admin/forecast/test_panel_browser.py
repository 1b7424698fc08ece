"""The forecast in a browser: from "what would this do?" to a rule that is enforced with the number of the line."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import override_settings

from django_ratelimiter.models import Rule
from tests.browser import Browser
from tests.forecast.traffic import record
from tests.strict_csp import STRICT

from ..pages import IN_BROWSER, open_as, page_of
from .test_panel import yesterday

pytestmark = IN_BROWSER

#: The first words on the screen below a heading of the forecast.
FIRST = (
    "const box = document.querySelector('.ratelimiter-forecast'), found = box.querySelector('h2 + p strong');"
    "return Math.abs(box.getBoundingClientRect().top) < 250 ? found.textContent : scrollY"
)

HEIGHT = "return document.querySelector('.ratelimiter-folded').getBoundingClientRect().top"
LEFT = "\ue012"
QUOTA = "return document.querySelector('#id_limits-0-quota').value"
LINE = "return document.querySelector('.ratelimiter-quota').getAttribute('y1')"


def test_look_move_take_shadow_and_enforce(window: Browser, live_server: Any, rule: Rule, settings: Any) -> None:
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    User.objects.create_superuser("admin", password="secret")
    callers = {f"caller-{place:02}": [2 + 120 // (place + 1)] for place in range(40)}
    record(yesterday(), callers, rule="export", tier="free", rejected=16 * 22)
    with override_settings(MIDDLEWARE=[STRICT, *settings.MIDDLEWARE]):
        window.resize(1280, 900)
        open_as(window, "admin", f"{live_server.url}{page_of(rule)}")
        window.wait_for("[name=_forecast]")
        window.complaints()

        window.click(".ratelimiter-ask button")
        window.wait_for(".ratelimiter-quota-line output")
        window.script("document.querySelector('#id_forecast-period').value = 'yesterday'")
        window.click(".ratelimiter-forecast-choices [value='1']")
        first = "About 2 in 100 callers would be rejected at least once, at worst 13. Now it is the same."
        window.wait_for_text(".ratelimiter-answer strong", first)
        assert window.script(FIRST) == first, "what stands on top of the screen"
        assert window.script(HEIGHT) < 900, "it fits on a screen"
        assert window.script("return document.querySelectorAll('.ratelimiter-forecast details[open]').length") == 0
        window.wait_for_text("output", "1 of 40 sampled callers (2.5 %)")

        window.script("document.querySelector('#ratelimiter-line-range').type = 'text'")  # as a theme does
        window.script("window.dispatchEvent(new Event('load'))")
        window.wait_for("#ratelimiter-line-range[type=range]")
        _move(window)
        taken = window.script("return document.querySelector('#id_forecast-quota').value")
        assert 10 < int(taken) < 60, taken
        above = sum(count > int(taken) for [count] in callers.values())
        window.wait_for_text("output", f"{above} of 40 sampled callers")
        window.click(".ratelimiter-take")
        assert window.script(QUOTA) == taken
        window.wait_for_text(".ratelimiter-taken", "It is not saved yet.")

        window.click(".ratelimiter-folded > summary")
        for mode in ("shadow", "enforce"):
            window.click(f"[name=mode][value={mode}]")
            window.click("[name=_continue]")
            window.wait_for(".messagelist .success")
            saved = Rule.objects.get(pk=rule.pk)
            assert (saved.mode, saved.limits.get(tier__slug="free").quota) == (mode, int(taken))
        assert window.complaints() == []


def _move(window: Browser) -> None:
    """Move the line by the keyboard, and then by the pointer, to the height at which the middle bar ends."""
    window.script("document.querySelector('#ratelimiter-line-range').focus()")
    before = window.script(LINE)
    for _ in range(3):
        window.press(LEFT)
    assert window.script(LINE) != before
    window.script(
        "const picture = document.querySelector('.ratelimiter-rates-bars');"
        "const {left, top, height} = picture.getBoundingClientRect();"
        "const at = {clientX: left + 5, clientY: top + height / 3, buttons: 1, pointerId: 1, bubbles: true};"
        "picture.setPointerCapture = () => {};"
        "picture.dispatchEvent(new PointerEvent('pointerdown', at));"
        "picture.dispatchEvent(new PointerEvent('pointermove', {...at, clientY: top + height / 3 + 1}))"
    )
