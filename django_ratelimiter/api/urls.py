"""The URLs of the API: `path("limits/", include("django_ratelimiter.api.urls"))`."""

from __future__ import annotations

from django.urls import URLPattern, path

from .views import MeView

app_name = "ratelimiter_api"

urlpatterns: list[URLPattern] = [path("me/", MeView.as_view(), name="me")]
