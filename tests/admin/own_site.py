"""A project's own site of the admin, at another address and under another name, without the usage reports."""

from django.contrib.admin import AdminSite
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.urls import path

from django_ratelimiter.admin import CustomerAdminMixin
from django_ratelimiter.admin.callers.tables import TierAdmin, TierAssignmentAdmin
from django_ratelimiter.admin.rules.admin import RuleAdmin
from django_ratelimiter.models import Rule, Tier, TierAssignment
from tests.urls import urlpatterns as usual


class CustomerAdmin(CustomerAdminMixin, GroupAdmin):
    """Of a project whose customers are groups; with its own list of fields."""

    fields = ("name",)


office = AdminSite(name="office")
office.register(User, UserAdmin)
office.register(Group, CustomerAdmin)
office.register(Rule, RuleAdmin)
office.register(Tier, TierAdmin)
office.register(TierAssignment, TierAssignmentAdmin)

urlpatterns = [path("office/", office.urls), *usual]
