"""Another site of the admin, beside Django's own."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.urls import path

from django_ratelimiter.admin.callers.tiers import TierAssignmentAdmin
from django_ratelimiter.models import TierAssignment

site = admin.AdminSite("backoffice")
site.register(TierAssignment, TierAssignmentAdmin)
site.register(User, UserAdmin)

urlpatterns = [path("backoffice/", site.urls), path("admin/", admin.site.urls)]
