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
    path("usage/totals/", views.TotalsView.as_view(), name="totals"),
    path("callers/", callers.CallerView.as_view(), name="caller"),
    path("callers/leases/", callers.LeasesView.as_view(), name="leases"),
    path("callers/leases/end/", callers.EndLeaseView.as_view(), name="end-lease"),
    path("callers/reset/", callers.ResetView.as_view(), name="reset"),
    path("callers/grant/", callers.GrantView.as_view(), name="grant"),
    path("callers/access/end/", callers.EndAccessView.as_view(), name="end-access"),
    path("explain/", explain.ExplainView.as_view(), name="explain"),
    path("me/", views.MeView.as_view(), name="me"),
]
