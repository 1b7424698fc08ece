import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0007_enforcement'),
    ]

    operations = [
        migrations.AddField(
            model_name='rule',
            name='sync_interval_ms',
            field=models.IntegerField(blank=True, help_text='Empty = Redis decides each request. Milliseconds = each process decides by what it has counted, and asks Redis once in so long. -1 = each process for itself, for good. Only for windows that are counted.', null=True, validators=[django.core.validators.MinValueValidator(-1), django.core.validators.MaxValueValidator(3600000)], verbose_name='count in each process for (ms)'),
        ),
        migrations.AddConstraint(
            model_name='rule',
            constraint=models.CheckConstraint(condition=models.Q(('sync_interval_ms', None), ('sync_interval_ms__range', (-1, 3600000)), _connector='OR'), name='ratelimiter_rule_sync_interval'),
        ),
    ]
