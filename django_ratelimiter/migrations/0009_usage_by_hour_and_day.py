from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0008_sync_interval'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='usagebucket',
            options={'ordering': ('-start', 'rule_slug', 'tier_slug'), 'permissions': [('view_usage_report', 'Can view usage reports')], 'verbose_name': 'usage bucket', 'verbose_name_plural': 'usage buckets'},
        ),
        migrations.AddField(
            model_name='usagebucket',
            name='degraded',
            field=models.PositiveBigIntegerField(db_default=0, default=0, verbose_name='decided without Redis'),
        ),
        migrations.AddField(
            model_name='usagebucket',
            name='partitions',
            field=models.PositiveBigIntegerField(blank=True, null=True, verbose_name='partitions'),
        ),
        migrations.AlterField(
            model_name='usagebucket',
            name='granularity',
            field=models.CharField(choices=[('minute', 'minute'), ('hour', 'hour'), ('day', 'day')], default='minute', max_length=8, verbose_name='granularity'),
        ),
        migrations.CreateModel(
            name='TopPartition',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('granularity', models.CharField(choices=[('hour', 'hour'), ('day', 'day')], max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('partition', models.CharField(max_length=200, verbose_name='partition')),
                ('allowed', models.PositiveBigIntegerField(default=0, verbose_name='allowed')),
                ('denied', models.PositiveBigIntegerField(default=0, verbose_name='denied')),
            ],
            options={
                'verbose_name': 'heaviest partition',
                'verbose_name_plural': 'heaviest partitions',
                'ordering': ('-start', 'rule_slug', '-allowed', 'partition'),
                'indexes': [models.Index(fields=['granularity', 'start'], name='ratelimiter_top_start')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'granularity', 'start', 'partition'), name='ratelimiter_top_partition')],
            },
        ),
        migrations.CreateModel(
            name='UsageSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('minute', models.DateTimeField(verbose_name='minute')),
                ('partition_hash', models.CharField(max_length=200, verbose_name='hash of the partition')),
                ('count', models.PositiveBigIntegerField(verbose_name='requests')),
            ],
            options={
                'verbose_name': 'usage sample',
                'verbose_name_plural': 'usage samples',
                'ordering': ('-minute', 'rule_slug', 'partition_hash'),
                'indexes': [models.Index(fields=['minute'], name='ratelimiter_sample_minute')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'minute', 'partition_hash'), name='ratelimiter_usage_sample')],
            },
        ),
    ]
