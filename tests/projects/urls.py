"""The addresses of these projects: the admin where it is installed, the API, and a page that rules are about."""

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path


def say_hello(request: HttpRequest) -> HttpResponse:
    """What visitors ask for."""
    return HttpResponse("hello")


urlpatterns = [
    path("limits/", include("django_ratelimiter.api.urls")),
    path("hello/", say_hello, name="hello"),
]
if apps.is_installed("django.contrib.admin"):
    urlpatterns.append(path("admin/", admin.site.urls))
