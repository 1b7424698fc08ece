"""A site that Prometheus asks. With `--preload` its parent process has decided requests as well, before it forks."""

from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()

from django.test import RequestFactory  # noqa: E402
from django.urls import path  # noqa: E402

from django_ratelimiter import limiter, prometheus  # noqa: E402
from tests.urls import urlpatterns as pages  # noqa: E402

urlpatterns = [path("metrics/", prometheus.metrics), *pages]

limiter.check(RequestFactory().get("/items/1/"))
