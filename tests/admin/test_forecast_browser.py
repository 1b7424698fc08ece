"""The forecast in a browser: from "what would this do?" to a rule that is saved with another quota."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.test import override_settings

from django_ratelimiter.models import Rule
from tests.browser import Browser
from tests.forecast.traffic import record
from tests.strict_csp import STRICT

from .pages import IN_BROWSER, open_as, page_of
from .test_forecast import yesterday

pytestmark = IN_BROWSER

#: The first words on the screen below a heading of the forecast.
FIRST = (
    "const box = document.querySelector('.ratelimiter-forecast'), found = box.querySelector('h2 + p strong');"
    "return Math.abs(box.getBoundingClientRect().top) < 250 ? found.textContent : scrollY"
)

HEIGHT = "return document.querySelector('.ratelimiter-folded').getBoundingClientRect().top"


def test_look_change_and_save(window: Browser, live_server: Any, rule: Rule, settings: Any) -> None:
    Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
    User.objects.create_superuser("admin", password="secret")
    callers = {f"caller-{place:02}": [2 + 120 // (place + 1)] for place in range(40)}
    record(yesterday(), callers, rule="export", tier="free", rejected=16 * 22)
    with override_settings(MIDDLEWARE=[STRICT, *settings.MIDDLEWARE]):
        open_as(window, "admin", f"{live_server.url}{page_of(rule)}")
        window.wait_for("[name=_forecast]")
        window.complaints()

        window.click(".ratelimiter-ask button")
        window.wait_for(".ratelimiter-quotas meter")
        window.script("document.querySelector('#id_forecast-period').value = 'yesterday'")
        window.click(".ratelimiter-forecast-choices [value='1']")
        first = "About 16 (3 to 91) of about 640 callers would be rejected at least once. Now it is the same."
        window.wait_for_text(".ratelimiter-answer strong", first)
        assert window.script(FIRST) == first, "what stands on top of the screen"
        assert window.script(HEIGHT) < 900, "it fits on a screen"
        assert window.script("return document.querySelectorAll('.ratelimiter-forecast details[open]').length") == 0
        window.wait_for_text(".ratelimiter-quotas", "free 50/min")

        window.click(".ratelimiter-folded > summary")
        window.script("document.querySelector('#id_limits-0-quota').value = '50'")
        window.click(".ratelimiter-forecast-choices [value='1']")
        window.wait_for_text(".ratelimiter-answer strong", "About 32 (")
        window.click("[name=_continue]")
        window.wait_for(".messagelist .success")
        assert rule.limits.get(tier__slug="free").quota == 50
        assert window.complaints() == []
