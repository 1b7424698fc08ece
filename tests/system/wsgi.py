"""The site of the system tests."""

from typing import Any

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from django.contrib.auth.signals import user_logged_in  # noqa: E402
from django.contrib.contenttypes.models import ContentType  # noqa: E402


def forget_content_types(**_signal: Any) -> None:
    """The database is flushed between tests, which gives content types new ids; a site's life is longer."""
    ContentType.objects.clear_cache()


user_logged_in.connect(forget_content_types)
