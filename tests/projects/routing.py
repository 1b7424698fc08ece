"""A router as projects write it: the app's tables are in the database "limits", all others in "default"."""

from __future__ import annotations

from typing import Any

APP = "django_ratelimiter"


class LimitsRouter:
    """Says something of the app's own tables only, as most routers do."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "limits" if model._meta.app_label == APP else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "limits") == (app_label == APP)
