"""A site that is nothing but its admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

urlpatterns = [path("", admin.site.urls)]
