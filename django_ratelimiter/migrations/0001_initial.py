"""Creates the tables, the row of `RuleSetState`, and exact collations on MySQL and MariaDB."""

import functools
import time
from decimal import Decimal
from typing import Any

import django.core.validators
import django.db.models.deletion
import django.db.models.functions.comparison
import django_ratelimiter.models.limits
import django_ratelimiter.models.people
import django_ratelimiter.models.validation
from django.conf import settings
from django.db import migrations, models

#: The columns whose texts must be told apart byte by byte, as Python and other databases do: slugs, names and digests.
EXACT_COLUMNS = (
    ("AccessEntry", "value"),
    ("CallerUsage", "identity"),
    ("CallerUsage", "rule_slug"),
    ("CallerUsage", "value"),
    ("Rule", "slug"),
    ("Tier", "slug"),
    ("TierAssignment", "api_key_hash"),
    ("TierAssignment", "partition"),
    ("TopCaller", "identity"),
    ("TopCaller", "partition"),
    ("TopPartition", "partition"),
    ("TopPartition", "rule_slug"),
    ("UsageBatch", "batch_id"),
    ("UsageBucket", "rule_slug"),
    ("UsageBucket", "tier_slug"),
    ("UsageEpisode", "name"),
    ("UsageSample", "partition_hash"),
    ("UsageSample", "rule_slug"),
    ("UsageSample", "tier_slug"),
)


def create_state(apps: Any, schema_editor: Any) -> None:
    """Create the one row whose lock numbers the versions. Its epoch tells this database's count from another's."""
    state = apps.get_model("django_ratelimiter", "RuleSetState")
    state.objects.using(schema_editor.connection.alias).get_or_create(
        id=1, defaults={"number": 0, "epoch": time.time_ns() // 1_000_000}
    )


def compare_bytes(apps: Any, schema_editor: Any) -> None:
    """On MySQL and MariaDB, give each of these columns the collation of its character set that compares bytes.

    Their default collations take "Api" for "api", and often "é" for "e": two digests would be one caller, and two rules
    could not have slugs that differ only so.
    """
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    for name, column in EXACT_COLUMNS:
        model = apps.get_model("django_ratelimiter", name)
        old = model._meta.get_field(column)
        new = old.clone()
        new.db_collation = f"{_character_set(connection, model._meta.db_table, old.column)}_bin"
        new.set_attributes_from_name(column)
        new.model = model
        schema_editor.alter_field(model, old, new)


def _character_set(connection: Any, table: str, column: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT character_set_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [table, column],
        )
        return str(cursor.fetchone()[0])


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='UsageBatch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('batch_id', models.CharField(max_length=200, unique=True, verbose_name='batch')),
                ('collected_at', models.DateTimeField(auto_now_add=True, verbose_name='collected at')),
            ],
            options={
                'verbose_name': 'usage batch',
                'verbose_name_plural': 'usage batches',
                'ordering': ('-collected_at', '-pk'),
            },
        ),
        migrations.CreateModel(
            name='UsageEpisode',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100, unique=True, verbose_name='name')),
                ('began_at', models.DateTimeField(auto_now_add=True, verbose_name='began at')),
            ],
            options={
                'verbose_name': 'usage episode',
                'verbose_name_plural': 'usage episodes',
                'ordering': ('-began_at', 'name'),
            },
        ),
        migrations.CreateModel(
            name='AccessEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(choices=[('allow', 'allow: skip all rules'), ('deny', 'deny: every request is rejected (403)')], default='deny', max_length=16, verbose_name='action')),
                ('kind', models.CharField(choices=[('ip', 'address or network'), ('user', 'user'), ('api_key', 'API key'), ('digest', 'digest of a caller'), ('customer', 'customer')], max_length=16, verbose_name='kind')),
                ('value', models.CharField(help_text='An address or network, the primary key of a user or customer, the SHA-256 digest of an API key in hex, or what rules count a caller by and its digest, such as “ip:DIGEST” or “user or ip:DIGEST”.', max_length=200, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='value')),
                ('expires_at', models.DateTimeField(blank=True, help_text='Empty = no end.', null=True, verbose_name='until')),
                ('reason', models.CharField(blank=True, help_text='For operators.', max_length=200, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='reason')),
            ],
            options={
                'verbose_name': 'access entry',
                'verbose_name_plural': 'access entries',
                'ordering': ('kind', 'value'),
                'constraints': [models.UniqueConstraint(fields=('kind', 'value'), name='ratelimiter_access_entry_value', violation_error_message='This caller already has an entry. Change that entry instead.'), models.CheckConstraint(condition=models.Q(models.Q(('kind', 'digest'), _negated=True), ('value__contains', ':'), _connector='OR'), name='ratelimiter_access_entry_digest', violation_error_message='Enter what rules count the caller by before its digest: “ip:DIGEST”.')],
            },
        ),
        migrations.CreateModel(
            name='Rule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(help_text='The name of the rule in responses, reports and fixtures. If you change it, the counters start from zero.', unique=True, verbose_name='slug')),
                ('name', models.CharField(max_length=100, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='name')),
                ('mode', models.CharField(choices=[('off', 'off'), ('shadow', 'shadow'), ('enforce', 'enforce')], default='shadow', help_text='Shadow: count which requests would be rejected, and reject none. Enforce: reject them.', max_length=16, verbose_name='mode')),
                ('methods', models.JSONField(blank=True, default=list, help_text='None chosen = every method.', validators=[django_ratelimiter.models.validation.validate_methods], verbose_name='methods')),
                ('path', models.CharField(blank=True, help_text='“/api/export/”, or a route as in urls.py: “items/&lt;int:pk&gt;/”.', max_length=500, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='path')),
                ('path_kind', models.CharField(choices=[('any', 'any path'), ('exact', 'exactly this path'), ('prefix', 'paths that start with it'), ('route', 'this route of urls.py')], default='any', max_length=16, verbose_name='path matches')),
                ('view_name', models.CharField(blank=True, help_text='With its namespace: “api:export”. Empty = every view.', max_length=200, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='view name')),
                ('scope', models.CharField(blank=True, help_text="The rule applies only where code asks for this scope, for example with a DRF view's throttle_scope. Empty = everywhere.", max_length=100, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='scope')),
                ('partition_by', models.JSONField(blank=True, default=list, help_text='Each value has its own counter. None chosen = one counter that all callers share.', validators=[django_ratelimiter.models.validation.validate_identities], verbose_name='counted by')),
                ('missing_partition', models.CharField(choices=[('skip', 'skips this rule'), ('ip', 'is counted by IP address'), ('deny', 'is rejected')], default='skip', help_text='For example, an anonymous request has no user. An unknown API key counts as missing. Counted by IP address, the requests whose body cannot be read share one counter if the rule is for one view or path.', max_length=16, verbose_name='a request without such a value')),
                ('failure_policy', models.CharField(choices=[('open', 'allow every request'), ('closed', 'reject every request (503)'), ('local', 'count in each process, with a share of the quota')], default='local', max_length=16, verbose_name='while Redis is out of reach')),
                ('cost', models.PositiveIntegerField(default=1, help_text='Units that one request uses.', validators=[django.core.validators.MinValueValidator(1)], verbose_name='cost')),
                ('charge_when', models.CharField(choices=[('any', 'always'), ('success', 'if the response is a success'), ('failure', 'if the response is a failure')], db_default='any', default='any', help_text='Each request is charged when it arrives. The charge is refunded if the response does not match this choice. A failure is a status of 400 or above, or a failed login.', max_length=16, verbose_name='charge when')),
                ('count_refusals', models.BooleanField(db_default=False, default=False, help_text='Rejected requests count too. Callers who keep trying may then be rejected for longer.', verbose_name='count rejections')),
                ('exact_usage', models.BooleanField(db_default=False, default=False, help_text='For invoices and reports per caller, beside the totals. Suggested for rules by customer, API key or user. Only if the rule counts by one of these or the IP address, and by nothing else.', verbose_name='count every caller exactly')),
                ('sync_interval_ms', models.IntegerField(blank=True, help_text='Empty = Redis decides each request. A number of milliseconds = each process fetches units in advance and keeps them so long. -1 = each process counts by itself. Not for leaky buckets and concurrency.', null=True, validators=[django.core.validators.MinValueValidator(-1), django.core.validators.MaxValueValidator(3600000)], verbose_name='keep fetched units for (ms)')),
                ('priority', models.IntegerField(default=100, help_text='All rules that match apply. Rules with lower numbers are decided and shown first.', verbose_name='priority')),
                ('message', models.CharField(blank=True, help_text='Shown to the caller whose request is rejected.', max_length=300, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='message')),
                ('description', models.TextField(blank=True, help_text='For operators; callers never see it.', validators=[django.core.validators.MaxLengthValidator(65536)], verbose_name='description')),
                ('owner', models.CharField(choices=[('admin', 'the admin'), ('file', 'a file')], db_default='admin', default='admin', help_text='A rule of a file is changed in that file, and read-only in the admin.', max_length=16, verbose_name='owner')),
            ],
            options={
                'verbose_name': 'rule',
                'verbose_name_plural': 'rules',
                'ordering': ('priority', 'slug'),
                'constraints': [models.CheckConstraint(condition=models.Q(('cost__gte', 1)), name='ratelimiter_rule_cost'), models.CheckConstraint(condition=models.Q(('sync_interval_ms', None), ('sync_interval_ms__range', (-1, 3600000)), _connector='OR'), name='ratelimiter_rule_sync_interval')],
            },
        ),
        migrations.CreateModel(
            name='RuleSetState',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ('number', models.PositiveBigIntegerField(default=0, verbose_name='number')),
                ('epoch', models.BigIntegerField(verbose_name='epoch')),
                ('enforcement_enabled', models.BooleanField(db_default=True, default=True, verbose_name='enforcement enabled')),
                ('published', models.BooleanField(db_default=False, default=False, verbose_name='published')),
                ('takeovers', models.PositiveIntegerField(db_default=0, default=0, verbose_name='takeovers')),
            ],
            options={
                'verbose_name': 'rule set state',
                'verbose_name_plural': 'rule set state',
                'permissions': [('switch_enforcement', 'Can stop and resume all enforcement'), ('publish_rule', 'Can have rules enforced, and bring back a version'), ('unblock_caller', "Can reset a caller's counters"), ('reveal_caller', 'Can see the names of callers instead of digests')],
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='ratelimiter_state_one_row')],
            },
        ),
        migrations.CreateModel(
            name='Tier',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(help_text='The name of the tier in rules, reports and fixtures.', unique=True, verbose_name='slug')),
                ('name', models.CharField(max_length=100, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='name')),
                ('rank', models.IntegerField(default=0, help_text='A caller who is assigned to several tiers gets the one with the highest rank.', verbose_name='rank')),
                ('default_for', models.CharField(choices=[('none', 'nobody'), ('anonymous', 'anonymous callers'), ('authenticated', 'authenticated callers')], default='none', help_text='These callers are in this tier if they have no assignment.', max_length=16, verbose_name='default for')),
            ],
            options={
                'verbose_name': 'tier',
                'verbose_name_plural': 'tiers',
                'ordering': ('rank', 'slug'),
                'constraints': [models.UniqueConstraint(condition=models.Q(('default_for', 'none'), _negated=True), fields=('default_for',), name='ratelimiter_tier_one_default', violation_error_message='Another tier is already the default for these callers.')],
            },
        ),
        migrations.CreateModel(
            name='TopCaller',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('granularity', models.CharField(choices=[('hour', 'hour'), ('day', 'day')], max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('partition', models.CharField(max_length=200, verbose_name='partition')),
                ('tail', models.CharField(blank=True, db_default='', default='', max_length=201, verbose_name='tail')),
                ('allowed', models.PositiveBigIntegerField(default=0, verbose_name='allowed')),
                ('rejected', models.PositiveBigIntegerField(default=0, verbose_name='rejected')),
                ('estimated', models.BooleanField(db_default=False, default=False, verbose_name='estimated')),
                ('identity', models.CharField(max_length=200, verbose_name='identity')),
            ],
            options={
                'verbose_name': 'top caller',
                'verbose_name_plural': 'top callers',
                'ordering': ('-start', 'identity', '-allowed', 'partition'),
                'indexes': [models.Index(fields=['granularity', 'start'], name='ratelimiter_caller_start')],
                'constraints': [models.UniqueConstraint(fields=('identity', 'granularity', 'start', 'partition'), name='ratelimiter_top_caller')],
            },
        ),
        migrations.CreateModel(
            name='TopPartition',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('granularity', models.CharField(choices=[('hour', 'hour'), ('day', 'day')], max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('partition', models.CharField(max_length=200, verbose_name='partition')),
                ('tail', models.CharField(blank=True, db_default='', default='', max_length=201, verbose_name='tail')),
                ('allowed', models.PositiveBigIntegerField(default=0, verbose_name='allowed')),
                ('rejected', models.PositiveBigIntegerField(default=0, verbose_name='rejected')),
                ('estimated', models.BooleanField(db_default=False, default=False, verbose_name='estimated')),
            ],
            options={
                'verbose_name': 'top partition',
                'verbose_name_plural': 'top partitions',
                'ordering': ('-start', 'rule_slug', '-allowed', 'partition'),
                'indexes': [models.Index(fields=['granularity', 'start'], name='ratelimiter_top_start')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'granularity', 'start', 'partition'), name='ratelimiter_top_partition')],
            },
        ),
        migrations.CreateModel(
            name='UsageTotal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('granularity', models.CharField(choices=[('minute', 'minute'), ('hour', 'hour'), ('day', 'day')], default='minute', max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('allowed', models.BigIntegerField(default=0, verbose_name='allowed')),
                ('rejected', models.BigIntegerField(default=0, verbose_name='rejected')),
                ('shadow_rejected', models.BigIntegerField(default=0, verbose_name='rejected in shadow')),
                ('soft_exceeded', models.BigIntegerField(default=0, verbose_name='soft quota exceeded')),
                ('degraded', models.BigIntegerField(db_default=0, default=0, verbose_name='decided without Redis')),
                ('exempt', models.BigIntegerField(db_default=0, default=0, verbose_name='exempt')),
            ],
            options={
                'verbose_name': 'total of requests',
                'verbose_name_plural': 'totals of requests',
                'ordering': ('-start',),
                'constraints': [models.UniqueConstraint(fields=('granularity', 'start'), name='ratelimiter_usage_total')],
            },
        ),
        migrations.CreateModel(
            name='UsageBucket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('tier_slug', models.CharField(blank=True, default='', max_length=50, verbose_name='tier')),
                ('granularity', models.CharField(choices=[('minute', 'minute'), ('hour', 'hour'), ('day', 'day')], default='minute', max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('allowed', models.BigIntegerField(default=0, verbose_name='allowed')),
                ('rejected', models.BigIntegerField(default=0, verbose_name='rejected')),
                ('shadow_rejected', models.BigIntegerField(default=0, verbose_name='rejected in shadow')),
                ('soft_exceeded', models.BigIntegerField(default=0, verbose_name='soft quota exceeded')),
                ('degraded', models.BigIntegerField(db_default=0, default=0, verbose_name='decided without Redis')),
                ('rejected_by_other', models.BigIntegerField(db_default=0, default=0, verbose_name='rejected by another rule')),
                ('units', models.BigIntegerField(db_default=0, default=0, verbose_name='units')),
            ],
            options={
                'verbose_name': 'usage bucket',
                'verbose_name_plural': 'usage reports',
                'ordering': ('-start', 'rule_slug', 'tier_slug'),
                'permissions': [('view_usage_report', 'Can view usage reports')],
                'indexes': [models.Index(fields=['granularity', 'start'], name='ratelimiter_usage_start')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'tier_slug', 'granularity', 'start'), name='ratelimiter_usage_bucket')],
            },
        ),
        migrations.CreateModel(
            name='CallerUsage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('identity', models.CharField(blank=True, max_length=16, verbose_name='identity')),
                ('value', models.CharField(blank=True, max_length=200, verbose_name='value')),
                ('hour', models.DateTimeField(verbose_name='hour')),
                ('allowed', models.BigIntegerField(default=0, verbose_name='allowed')),
                ('rejected', models.BigIntegerField(default=0, verbose_name='rejected')),
                ('rejected_by_other', models.BigIntegerField(default=0, verbose_name='rejected by another rule')),
                ('units', models.BigIntegerField(default=0, verbose_name='units')),
            ],
            options={
                'verbose_name': 'usage of a caller',
                'verbose_name_plural': 'usage of callers',
                'ordering': ('-hour', 'rule_slug', 'identity', 'value'),
                'indexes': [models.Index(fields=['identity', 'rule_slug', 'hour'], name='ratelimiter_caller_hour')],
                'constraints': [models.UniqueConstraint(fields=('identity', 'value', 'rule_slug', 'hour'), name='ratelimiter_caller_usage')],
            },
        ),
        migrations.CreateModel(
            name='UsageSample',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('tier_slug', models.CharField(blank=True, db_default='', default='', max_length=50, verbose_name='tier')),
                ('minute', models.DateTimeField(verbose_name='minute')),
                ('partition_hash', models.CharField(max_length=200, verbose_name='hash of the partition')),
                ('tail', models.CharField(blank=True, db_default='', default='', max_length=201, verbose_name='tail')),
                ('count', models.PositiveBigIntegerField(verbose_name='requests')),
            ],
            options={
                'verbose_name': 'usage sample',
                'verbose_name_plural': 'usage samples',
                'ordering': ('-minute', 'rule_slug', 'partition_hash'),
                'indexes': [models.Index(fields=['minute'], name='ratelimiter_sample_minute'), models.Index(fields=['partition_hash', 'minute'], name='ratelimiter_sample_hash'), models.Index(fields=['rule_slug', 'partition_hash', 'tier_slug', 'minute', 'count'], name='ratelimiter_sample_rule')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'minute', 'partition_hash', 'tier_slug'), name='ratelimiter_usage_sample')],
            },
        ),
        migrations.CreateModel(
            name='RuleSetVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveBigIntegerField(verbose_name='number')),
                ('epoch', models.BigIntegerField(verbose_name='epoch')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created at')),
                ('summary', models.CharField(blank=True, max_length=255, verbose_name='summary')),
                ('reason', models.CharField(blank=True, db_default='', help_text='Why the rules were changed. The history shows it.', max_length=255, verbose_name='reason')),
                ('source', models.CharField(blank=True, db_default='', max_length=255, verbose_name='file')),
                ('snapshot', models.JSONField(verbose_name='snapshot')),
                ('author', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.set_null, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='author')),
            ],
            options={
                'verbose_name': 'rule set version',
                'verbose_name_plural': 'rule set versions',
                'ordering': ('-epoch', '-number'),
                'constraints': [models.UniqueConstraint(fields=('epoch', 'number'), name='ratelimiter_version_number')],
            },
        ),
        migrations.CreateModel(
            name='RuleLimit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('algorithm', models.CharField(choices=functools.partial(django_ratelimiter.models.limits.choices_of, 'algorithm'), default='sliding_window_counter', error_messages={'invalid_choice': '%(value)r is unknown to this version of the program.'}, max_length=32, verbose_name='algorithm')),
                ('quota', models.PositiveBigIntegerField(blank=True, help_text='Units per window, or in progress at once.', null=True, verbose_name='quota')),
                ('window_seconds', models.DecimalField(blank=True, decimal_places=6, help_text='60 = a minute, 3600 = an hour, 86400 = a day.', max_digits=16, null=True, verbose_name='window in seconds')),
                ('calendar', models.CharField(blank=True, choices=functools.partial(django_ratelimiter.models.limits.choices_of, 'calendar'), db_default='', default='', help_text='A unit of the calendar instead of a window.', max_length=16, verbose_name='calendar')),
                ('timezone', models.CharField(blank=True, db_default='', default='', help_text='Windows begin at midnight in this time zone. Empty = UTC.', max_length=64, verbose_name='time zone')),
                ('anchor_day', models.PositiveSmallIntegerField(blank=True, help_text='1 to 31. In a shorter month, its last day is used. Empty = 1.', null=True, verbose_name='first day of the month')),
                ('anchor', models.CharField(choices=functools.partial(django_ratelimiter.models.limits.choices_of, 'anchor'), db_default='clock', default='clock', max_length=16, verbose_name='windows begin')),
                ('burst', models.PositiveBigIntegerField(blank=True, help_text='The capacity of the bucket, in units. Empty = the quota.', null=True, verbose_name='burst')),
                ('refill', models.CharField(choices=functools.partial(django_ratelimiter.models.limits.choices_of, 'refill'), db_default='continuous', default='continuous', max_length=16, verbose_name='units come back')),
                ('slots', models.PositiveSmallIntegerField(blank=True, help_text='Parts of the window, 1 to 100. Empty = 10.', null=True, verbose_name='slots')),
                ('max_delay_ms', models.PositiveIntegerField(blank=True, db_default=0, default=0, help_text='For synchronous workers, which sleep during the delay. 0 = reject requests that would have to wait.', verbose_name='longest delay in milliseconds')),
                ('soft_quota', models.PositiveBigIntegerField(blank=True, help_text='Requests beyond this number are allowed, but marked and counted. Empty = none.', null=True, verbose_name='soft quota')),
                ('unlimited', models.BooleanField(default=False, help_text='This rule does not limit the tier. Leave the numbers empty.', verbose_name='unlimited')),
                ('generation', models.PositiveIntegerField(db_default=0, default=0, editable=False, verbose_name='generation')),
                ('rule', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='django_ratelimiter.rule', verbose_name='rule')),
                ('tier', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='django_ratelimiter.tier', verbose_name='tier')),
            ],
            options={
                'verbose_name': 'limit',
                'verbose_name_plural': 'limits',
                'ordering': (models.OrderBy(models.F('tier__rank'), nulls_last=True), models.OrderBy(models.F('window_seconds'), nulls_last=True), 'pk'),
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('anchor', 'clock'), ('anchor_day', None), ('burst', None), ('calendar', ''), ('max_delay_ms', 0), ('quota', None), ('refill', 'continuous'), ('slots', None), ('soft_quota', None), ('timezone', ''), ('unlimited', True), ('window_seconds', None)), models.Q(('calendar', ''), ('quota__gte', 1), ('quota__isnull', False), ('unlimited', False), ('window_seconds__isnull', False)), models.Q(('quota__gte', 1), ('quota__isnull', False), ('unlimited', False), ('window_seconds', None), models.Q(('calendar', ''), _negated=True)), _connector='OR'), name='ratelimiter_limit_numbers'), models.CheckConstraint(condition=models.Q(models.Q(('timezone', ''), models.Q(('calendar', ''), _negated=True), _connector='OR'), models.Q(('anchor_day', None), models.Q(('anchor_day__range', (1, 31)), ('calendar', 'month')), _connector='OR')), name='ratelimiter_limit_calendar'), models.CheckConstraint(condition=models.Q(('slots', None), ('slots__range', (1, 100)), _connector='OR'), name='ratelimiter_limit_slots')],
            },
        ),
        migrations.CreateModel(
            name='TierAssignment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('api_key_hash', models.CharField(blank=True, default='', help_text='The SHA-256 digest of the key, in hex. The key itself is not stored.', max_length=64, validators=[django.core.validators.RegexValidator('\\A[0-9a-f]{64}\\Z', 'This is not a SHA-256 digest in lower-case hex.')], verbose_name='API key hash')),
                ('partition', models.CharField(blank=True, db_default='', default='', help_text='A value that rules count by, stored as you enter it: “ip:192.0.2.7” or “ip:192.0.2.0/24”.', max_length=200, verbose_name='partition')),
                ('multiplier', models.DecimalField(db_default=Decimal('1'), decimal_places=3, default=Decimal('1'), help_text='Multiplies quota, burst and soft quota of every limit that applies, but not of counters that all callers share. 2 = twice as much.', max_digits=8, validators=[django.core.validators.MinValueValidator(Decimal('0.001'))], verbose_name='multiplier')),
                ('anchor_day', models.PositiveSmallIntegerField(blank=True, help_text='1 to 31: limits per calendar month begin on this day for the caller. In a shorter month, its last day is used. Empty = as each limit says.', null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(31)], verbose_name='first day of the month')),
                ('starts_at', models.DateTimeField(blank=True, help_text='Assignments with dates take precedence over those without.', null=True, verbose_name='from')),
                ('ends_at', models.DateTimeField(blank=True, null=True, verbose_name='until')),
                ('reason', models.CharField(blank=True, max_length=200, validators=[django_ratelimiter.models.validation.validate_line], verbose_name='reason')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created at')),
                ('created_by', models.ForeignKey(blank=True, db_constraint=False, editable=False, null=True, on_delete=django_ratelimiter.models.people.set_null, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='created by')),
                ('group', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.cascade, related_name='ratelimiter_assignments', to='auth.group', verbose_name='group')),
                ('tier', models.ForeignKey(blank=True, help_text='Empty = the tier that these callers have anyway. Then the multiplier goes on top of it.', null=True, on_delete=django.db.models.deletion.CASCADE, related_name='assignments', to='django_ratelimiter.tier', verbose_name='tier')),
                ('user', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.cascade, related_name='ratelimiter_assignments', to=settings.AUTH_USER_MODEL, verbose_name='user')),
            ],
            options={
                'verbose_name': 'tier assignment',
                'verbose_name_plural': 'tier assignments',
                'ordering': ('-pk',),
                'indexes': [models.Index(fields=['api_key_hash'], name='ratelimiter_assignment_key'), models.Index(fields=['partition'], name='ratelimiter_assignment_part')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('api_key_hash', ''), ('group', None), ('partition', ''), models.Q(('user', None), _negated=True)), models.Q(('api_key_hash', ''), ('partition', ''), ('user', None), models.Q(('group', None), _negated=True)), models.Q(('group', None), ('partition', ''), ('user', None), models.Q(('api_key_hash', ''), _negated=True)), models.Q(('api_key_hash', ''), ('group', None), ('user', None), models.Q(('partition', ''), _negated=True)), _connector='OR'), name='ratelimiter_assignment_one_subject', violation_error_message='Choose exactly one of user, group, API key and partition.'), models.CheckConstraint(condition=models.Q(('multiplier__gt', 0)), name='ratelimiter_assignment_multiplier', violation_error_message='The multiplier must be above 0.'), models.CheckConstraint(condition=models.Q(('anchor_day', None), ('anchor_day__range', (1, 31)), _connector='OR'), name='ratelimiter_assignment_anchor', violation_error_message='Days are from 1 to 31.'), models.CheckConstraint(condition=models.Q(('starts_at', None), ('ends_at', None), ('ends_at__gt', models.F('starts_at')), _connector='OR'), name='ratelimiter_assignment_dates', violation_error_message='“until” must be later than “from”.')],
            },
        ),
        # Not within the tables: there Django 5.2 fails on MySQL and MariaDB, which have no such constraints.
        migrations.AddConstraint(
            model_name='rulelimit',
            constraint=models.UniqueConstraint(models.F('rule'), models.F('tier'), models.F('algorithm'), django.db.models.functions.comparison.Coalesce('window_seconds', Decimal('0')), models.F('calendar'), models.F('timezone'), django.db.models.functions.comparison.Coalesce('anchor_day', 1), models.F('anchor'), models.F('refill'), django.db.models.functions.comparison.Coalesce('slots', 10), condition=models.Q(('unlimited', False)), name='ratelimiter_limit_of_tier', violation_error_message='This tier already has a limit that counts in the same way.'),
        ),
        migrations.AddConstraint(
            model_name='rulelimit',
            constraint=models.UniqueConstraint(models.F('rule'), models.F('algorithm'), django.db.models.functions.comparison.Coalesce('window_seconds', Decimal('0')), models.F('calendar'), models.F('timezone'), django.db.models.functions.comparison.Coalesce('anchor_day', 1), models.F('anchor'), models.F('refill'), django.db.models.functions.comparison.Coalesce('slots', 10), condition=models.Q(('tier', None), ('unlimited', False)), name='ratelimiter_limit_of_others', violation_error_message='“Every other tier” already has a limit that counts in the same way.'),
        ),
        migrations.AddConstraint(
            model_name='rulelimit',
            constraint=models.UniqueConstraint(condition=models.Q(('unlimited', True)), fields=('rule', 'tier'), name='ratelimiter_limit_unlimited_tier', violation_error_message='This tier is unlimited already.'),
        ),
        migrations.AddConstraint(
            model_name='rulelimit',
            constraint=models.UniqueConstraint(condition=models.Q(('tier', None), ('unlimited', True)), fields=('rule',), name='ratelimiter_limit_unlimited_others', violation_error_message='Every other tier is unlimited already.'),
        ),
        migrations.AddConstraint(
            model_name='tierassignment',
            constraint=models.UniqueConstraint(condition=models.Q(('ends_at', None), ('starts_at', None)), fields=('user', 'tier'), name='ratelimiter_assignment_user', violation_error_message='This user is in this tier already.'),
        ),
        migrations.AddConstraint(
            model_name='tierassignment',
            constraint=models.UniqueConstraint(condition=models.Q(('ends_at', None), ('starts_at', None)), fields=('group', 'tier'), name='ratelimiter_assignment_group', violation_error_message='This group is in this tier already.'),
        ),
        migrations.AddConstraint(
            model_name='tierassignment',
            constraint=models.UniqueConstraint(condition=models.Q(models.Q(('api_key_hash', ''), _negated=True), ('ends_at', None), ('starts_at', None)), fields=('api_key_hash', 'tier'), name='ratelimiter_assignment_api_key', violation_error_message='This API key is in this tier already.'),
        ),
        migrations.AddConstraint(
            model_name='tierassignment',
            constraint=models.UniqueConstraint(condition=models.Q(models.Q(('partition', ''), _negated=True), ('ends_at', None), ('starts_at', None)), fields=('partition', 'tier'), name='ratelimiter_assignment_partition', violation_error_message='This partition is in this tier already.'),
        ),
        migrations.RunPython(create_state, migrations.RunPython.noop, hints={"model_name": "rulesetstate"}),
        # MySQL alters no table within a transaction that it could roll back.
        migrations.RunPython(
            compare_bytes, migrations.RunPython.noop, atomic=False, hints={"model_name": "usagebucket"}
        ),
    ]
