"""The tenants of a project with django-tenants."""

from __future__ import annotations

from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):
    name = models.CharField(max_length=100)


class Domain(DomainMixin):
    pass
