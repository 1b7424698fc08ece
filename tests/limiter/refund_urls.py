"""Views that answer with the status that they are asked for, and a page to log in."""

from django.contrib import admin
from django.contrib.auth import authenticate
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_ratelimiter import limiter

from ..entry_points.urls import broken


def answer(request: HttpRequest, status: int) -> HttpResponse:
    return HttpResponse(status=status)


def fail(request: HttpRequest) -> HttpResponse:
    """A page that says in its text only that something has failed."""
    limiter.mark_failed(request)
    return HttpResponse("try again")


def guess(request: HttpRequest) -> HttpResponse:
    """A page to log in that names no request where it checks the password, and says only in its text that it failed."""
    user = authenticate(username=request.POST["username"], password=request.POST["password"])
    return HttpResponse("welcome" if user else "wrong")


urlpatterns = [
    path("admin/", admin.site.urls),  # the page to log in is its own
    path("status/<int:status>/", answer),
    path("failed/", fail),
    path("guess/", guess),
    path("broken/", broken),
    path("login/", LoginView.as_view(template_name="admin/login.html", next_page="/status/200/")),
]
