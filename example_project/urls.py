"""The pages for the demo's rules, the limiter's own API, and the admin."""

from django.contrib import admin
from django.urls import include, path

from . import views

urlpatterns = [
    path("", views.index),
    path("prices/", views.prices),
    path("orders/", views.orders),
    path("sign-in/", views.sign_in),
    path("api/search/", views.Search.as_view()),
    path("api/export/", views.Export.as_view()),
    path("api/reports/", views.Reports.as_view()),
    path("api/invoices/", views.Invoices.as_view()),
    path("api/limits/", include("django_ratelimiter.api.urls")),
    path("admin/", admin.site.urls),
]
