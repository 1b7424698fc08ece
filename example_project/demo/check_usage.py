"""Third check: the admin's usage report, compared with what was sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from ..catalogue import ADMIN, PASSWORD, TIERS
from .admin_client import Admin
from .console import Progress, Table, heading, note, say
from .results import UsageRow, usage_rows
from .servers import COLLECT_SECONDS, Site
from .traffic import Answer

#: Maximum seconds after the end of a minute until its counts are in the report.
COLLECTION_SECONDS: Final = 20.0

#: The report by rule and tier, by their names there: the value in each column.
Report = dict[tuple[str, str], dict[str, int]]

_COLUMNS: Final = {
    "tier": -10, "sent": 8, "reported": 10, "allowed": 10, "rejected": 10, "elsewhere": 11, "in shadow": 11
}  # fmt: skip
_TITLES: Final = ("Requests", "Allowed", "Rejected", "Rejected by another rule", "Would be rejected")


def check_usage(site: Site, answers: list[Answer]) -> bool:
    """Wait until the last minute is collected. True if the report is exactly what the client sent and saw."""
    heading("3. The usage report in the admin, against the requests sent")
    wanted = usage_rows(answers)
    report = _wait_for(site, wanted, max(answer.answered for answer in answers))
    say()
    agrees = _print(wanted, report)
    for (rule, tier), seen in report.items():
        say(f"  The report also has {seen.get('Requests', 0):,} requests that nobody sent: {rule}, {tier}.")
    return agrees and not report


def _wait_for(site: Site, wanted: Sequence[UsageRow], last: float) -> Report:
    """Return the report once it has as many requests as were sent, or when the time is up."""
    admin = Admin(site.url)
    admin.log_in(ADMIN, PASSWORD)
    began, closes = time.time(), (last // 60 + 1) * 60
    total = sum(row.total for row in wanted)
    note(f"A minute is collected once it has ended; the last one ends in {max(closes - began, 0):.0f} s.")
    with Progress() as progress:
        while True:
            site.check_running()
            report = admin.usage()
            found = sum(seen.get("Requests", 0) for seen in report.values())
            share = (time.time() - began) / (closes + COLLECT_SECONDS - began)
            progress.show(*_progress(found, total, share, closes - time.time()))
            if found == total or time.time() > closes + COLLECTION_SECONDS:
                return report
            time.sleep(1.0)


def _progress(found: int, total: int, share: float, left: float) -> tuple[float, str]:
    """Return the share of the wait that is over, and what it waits for. left: seconds until the last minute ends."""
    reported = f"{found:,} of {total:,} decisions reported"
    if found == total:
        return 1.0, reported
    what = f"the minute ends in {left:.0f} s" if left > 0 else "the minute has ended and is being collected"
    return min(share, 0.99), f"{what}; {reported} so far"


def _print(wanted: Sequence[UsageRow], report: Report) -> bool:
    """Print the table; removes the wanted rows from the report, and leaves the rest in it."""
    tiers = {tier.slug: tier.name for tier in TIERS}
    table = Table(_COLUMNS)
    all_agree = True
    for rule, of_rule in groupby(wanted, key=lambda row: row.rule):
        table.group(rule.slug, f"“{rule.name}”")
        for row in of_rule:
            # The report omits columns that are completely empty.
            seen = report.pop((rule.name, tiers[row.tier]), {})
            figures = [seen.get(title, 0) for title in _TITLES]
            agrees = figures == [row.total, row.allowed, row.rejected, row.elsewhere, row.shadow_rejected]
            table.row(row.tier, row.total, *figures, agrees=agrees)
            if not agrees:
                seen_as = f"{row.rejected:,} rejected, {row.elsewhere:,} elsewhere, {row.shadow_rejected:,} in shadow"
                note(f"  seen: {row.allowed:,} allowed, {seen_as}")
            all_agree = all_agree and agrees
    say()
    note("elsewhere: requests that only another rule has rejected.")
    note("in shadow: requests that a shadow rule would have rejected.")
    note("A rule does not count the requests of a tier that is unlimited under it.")
    return all_agree
