"""The site of the system tests for ASGI servers."""

from django.core.asgi import get_asgi_application

application = get_asgi_application()
