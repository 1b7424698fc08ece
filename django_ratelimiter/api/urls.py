"""The addresses of the API: `path("limits/", include("django_ratelimiter.api.urls"))`."""

from __future__ import annotations

from django.apps import apps
from django.urls import path

from . import views

if apps.is_installed("drf_spectacular"):
    from . import schema as schema

app_name = "ratelimiter_api"

urlpatterns = [
    path("rules/", views.Rules.as_view(), name="rules"),
    path("rules/<str:slug>/", views.Rule.as_view(), name="rule"),
    path("rules/<str:slug>/partitions/", views.Partitions.as_view(), name="partitions"),
    path("usage/", views.Usage.as_view(), name="usage"),
    path("usage/totals/", views.Totals.as_view(), name="totals"),
    path("me/", views.Own.as_view(), name="me"),
]
