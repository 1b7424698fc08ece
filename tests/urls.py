"""The addresses that the tests ask for; a test that needs others names its own `urlconf`."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path


def say_hello(request: HttpRequest, **captured: object) -> HttpResponse:
    """A view that any method may ask, and that anybody may see."""
    return HttpResponse("hello")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("hello/", say_hello, name="hello"),
    path("items/<int:item>/", say_hello, name="item"),
]
