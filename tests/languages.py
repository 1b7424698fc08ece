"""What reads in another language as it does in English."""

from __future__ import annotations

from typing import Final

#: What is read as it is, by language.
THE_SAME: Final[dict[str, set[str]]] = {
    "de": {
        *("GCRA", "View", "Route", "Version", "Server", "Problem", "Scope", "Body", "%s ms", "Client %s"),
        "%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).",
    },
    "es": {
        *("Digest", "Error:", "error", "GCRA", "Slug", "slug", "Total", "d", "h", "min", "s", "%s %%", "%s ms", "j M"),
        *("leaky bucket", "token bucket", "no", "no: %(reason)s"),
        "%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).",
    },
    "fr": {
        *("Client", "client", "Client %s", "Date", "GCRA", "Mode", "mode", "Route", "Slug", "slug", "Total", "Version"),
        *("action", "description", "message", "partition", "partitions", "quota", "session", "minute", "minutes", "h"),
        *("min", "s", "%s ms", "%(count)d minute", "j M", "version %(number)s", "Version %(number)s, %(when)s."),
    },
    "pt": {
        *(
            "Digest",
            "GCRA",
            "Slug",
            "slug",
            "Total",
            "View",
            "view",
            "view %(name)s",
            "quota",
            "snapshot",
            "d",
            "h",
            "min",
        ),
        *("s", "%s ms", "j M", "leaky bucket", "token bucket"),
        "%(what)s: %(requests)s (%(share)s), %(callers)s (%(of_callers)s).",
        "Throttle %(name)s: %(reason)s. Views: %(views)s.",
    },
    "zh_Hans": {"GCRA"},
}
