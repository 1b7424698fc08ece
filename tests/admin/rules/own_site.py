"""A site whose rules stand in an AdminSite of its own, without the usage reports."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_ratelimiter.admin.rules.admin import RuleAdmin
from django_ratelimiter.models import Rule

site = AdminSite("operations")
site.register(Rule, RuleAdmin)

urlpatterns = [path("operations/", site.urls)]
