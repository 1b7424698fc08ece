"""A project's own site of the admin, at another address and under another name, without the usage reports."""

from django.contrib.admin import AdminSite
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.urls import path

from django_ratelimiter.admin.callers.tables import TierAdmin, TierAssignmentAdmin
from django_ratelimiter.admin.rules.admin import RuleAdmin
from django_ratelimiter.models import Rule, Tier, TierAssignment
from tests.urls import urlpatterns as usual

office = AdminSite(name="office")
office.register(User, UserAdmin)
office.register(Rule, RuleAdmin)
office.register(Tier, TierAdmin)
office.register(TierAssignment, TierAssignmentAdmin)

urlpatterns = [path("office/", office.urls), *usual]
