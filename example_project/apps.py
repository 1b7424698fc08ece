"""The example's app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "example_project"
    verbose_name = "Shop"
