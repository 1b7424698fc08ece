"""The app configuration: registers what Django must know once the app is loaded."""

from __future__ import annotations

from types import ModuleType

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from .values.distributions import REMEDY, THEIRS, others


class DjangoRatelimiterConfig(AppConfig):
    """Tiered rate limits."""

    name = "django_ratelimiter"
    verbose_name = _("Rate limits")
    default_auto_field: str = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        """Raise ImproperlyConfigured if another distribution has replaced or deleted files of the package."""
        if not hasattr(app_module, "UNSAFE"):  # its `__init__.py` is not ours; earlier than any import that would fail
            names = ", ".join(others()) or THEIRS
            raise ImproperlyConfigured(
                f"Files of django_ratelimiter are replaced or deleted: {names} installs the same package. {REMEDY}"
            )
        super().__init__(app_name, app_module)

    def ready(self) -> None:
        """Register the system checks, and the signals that give each change of a rule a version number."""
        from django.contrib.auth.signals import user_login_failed

        from . import checks  # noqa: F401  they are registered
        from .limiter import refunds
        from .models import people
        from .rules import cache

        people.connect()
        cache.connect()
        user_login_failed.connect(refunds.on_login_failed, dispatch_uid="django_ratelimiter.failed_login")
