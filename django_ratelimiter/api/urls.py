"""The addresses of the API: `path("limits/", include("django_ratelimiter.api.urls"))`."""

from __future__ import annotations

from django.apps import apps
from django.urls import path, re_path

from . import views

if apps.is_installed("drf_spectacular"):
    from . import schema as schema

app_name = "ratelimiter_api"

#: As rules may be called, those written in code included; so that nothing else reaches the database.
_RULE = r"rules/(?P<slug>[A-Za-z0-9_.:-]{1,50})"

urlpatterns = [
    path("rules/", views.Rules.as_view(), name="rules"),
    re_path(rf"^{_RULE}/$", views.Rule.as_view(), name="rule"),
    re_path(rf"^{_RULE}/partitions/$", views.Partitions.as_view(), name="partitions"),
    path("usage/", views.Usage.as_view(), name="usage"),
    path("usage/totals/", views.Totals.as_view(), name="totals"),
    path("me/", views.Own.as_view(), name="me"),
]
