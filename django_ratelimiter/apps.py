"""The app, and what has to be bound once it is loaded."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoRatelimiterConfig(AppConfig):
    """Tiered rate limits."""

    name = "django_ratelimiter"
    verbose_name = _("Rate limits")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and number every change of a rule from now on."""
        from django.contrib.auth.signals import user_login_failed

        from . import checks, returning
        from .rules import cache

        checks.register()
        cache.connect()
        user_login_failed.connect(returning.note_failed_login, dispatch_uid="django_ratelimiter.failed_login")
