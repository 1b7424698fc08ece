"""Lasting conditions; one alert is sent for each."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class UsageEpisode(models.Model):
    """A condition that has lasted since `began_at`. While its row exists, no further alert is sent for it.

    name: "behind", or "rejecting:" and the slug of a rule.
    """

    name = models.CharField(_("name"), max_length=100, unique=True)
    began_at = models.DateTimeField(_("began at"), auto_now_add=True)

    class Meta:
        verbose_name = _("usage episode")
        verbose_name_plural = _("usage episodes")
        ordering = ("-began_at", "name")

    def __str__(self) -> str:
        return self.name
