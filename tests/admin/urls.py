"""A site with views of every kind that a rule may name."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path


def page(request: HttpRequest, **captured: object) -> HttpResponse:
    """A view that any method may ask, and that anybody may see."""
    return HttpResponse("page")


class Export:
    """Stands for a REST framework view with a scope."""

    throttle_scope = "export"


def export(request: HttpRequest, **captured: object) -> HttpResponse:
    """A view with a scope, as the REST framework makes it."""
    return HttpResponse("export")


export.cls = Export  # type: ignore[attr-defined]

api = [
    path("export/", export, name="export"),
    path("items/", page, name="items"),
    path("items/<int:pk>/", page, name="item"),
    re_path(r"^old/(?P<year>\d{4})/$", page, name="old"),
]

urlpatterns = [
    path("admin/", admin.site.urls),
    path("login/", page, name="login"),
    path("api/", include((api, "api"))),
    path("apiary/", page),
]
