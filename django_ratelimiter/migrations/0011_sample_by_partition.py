from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0010_usage_episodes'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='usagesample',
            index=models.Index(fields=['partition_hash', 'minute'], name='ratelimiter_sample_hash'),
        ),
    ]
