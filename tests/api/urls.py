"""The API as a project includes it, and a page that rules may be about."""

from __future__ import annotations

from django.urls import include, path

from tests.urls import say_hello

urlpatterns = [
    path("limits/", include("django_ratelimiter.api.urls")),
    path("hello/", say_hello),
    path("items/<int:item>/", say_hello),
]
