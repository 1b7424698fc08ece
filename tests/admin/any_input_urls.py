"""The admin and the API."""

from __future__ import annotations

from django.urls import include, path

from tests import urls

urlpatterns = [*urls.urlpatterns, path("limits/", include("django_ratelimiter.api.urls"))]
