"""The URLs of the API: `path("limits/", include("django_ratelimiter.api.urls"))`."""

from __future__ import annotations

from django.apps import apps
from django.urls import path

from . import views
from .support import callers, explain

if apps.is_installed("drf_spectacular"):
    from . import schema as schema

app_name = "ratelimiter_api"

urlpatterns = [
    path("rules/", views.RuleListView.as_view(), name="rules"),
    path("rules/<str:slug>/", views.RuleDetailView.as_view(), name="rule"),
    path("rules/<str:slug>/partitions/", views.PartitionsView.as_view(), name="partitions"),
    path("usage/", views.UsageView.as_view(), name="usage"),
    path("usage/top-callers/", views.TopCallersView.as_view(), name="top-callers"),
    path("usage/totals/", views.TotalsView.as_view(), name="totals"),
    path("callers/", callers.CallerView.as_view(), name="caller"),
    path("callers/leases/", callers.LeasesView.as_view(), name="leases"),
    *(path(f"callers/{kind}/", view.as_view(), name=kind) for kind, view in callers.ACT_VIEWS.items()),
    path("explain/", explain.ExplainView.as_view(), name="explain"),
    path("me/", views.MeView.as_view(), name="me"),
]
