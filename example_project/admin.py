"""The admin's page of accounts, with what each has used."""

from django.contrib import admin

from django_ratelimiter.admin import CustomerAdminMixin

from .models import Account


@admin.register(Account)
class AccountAdmin(CustomerAdminMixin, admin.ModelAdmin):
    """The overview of rate limits finds accounts by these fields."""

    search_fields = ("name", "users__username", "users__email")
    filter_horizontal = ("users",)
