"""Adds the tier to samples, and the index that a forecast reads them by."""

from functools import partial
from importlib import import_module

from django.db import migrations, models

#: As in 0001_initial.
EXACT_COLUMNS = (("UsageSample", "tier_slug"),)

compare_bytes = partial(import_module(f"{__package__}.0001_initial").compare_bytes, columns=EXACT_COLUMNS)


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='usagesample',
            name='tier_slug',
            field=models.CharField(blank=True, db_default='', default='', max_length=50, verbose_name='tier'),
        ),
        migrations.RunPython(
            compare_bytes, migrations.RunPython.noop, atomic=False, hints={"model_name": "usagesample"}
        ),
        migrations.RemoveConstraint(
            model_name='usagesample',
            name='ratelimiter_usage_sample',
        ),
        migrations.AddConstraint(
            model_name='usagesample',
            constraint=models.UniqueConstraint(
                fields=('rule_slug', 'minute', 'partition_hash', 'tier_slug'), name='ratelimiter_usage_sample'
            ),
        ),
        migrations.AddIndex(
            model_name='usagesample',
            index=models.Index(
                fields=['rule_slug', 'partition_hash', 'tier_slug', 'minute', 'count'],
                name='ratelimiter_sample_rule',
            ),
        ),
    ]
