import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import django_ratelimiter.models.limits


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
            name='Rule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(help_text='Its name in responses, reports and fixtures. A new one starts its counters anew.', unique=True, verbose_name='slug')),
                ('name', models.CharField(max_length=100, verbose_name='name')),
                ('mode', models.CharField(choices=[('off', 'off'), ('shadow', 'shadow'), ('enforce', 'enforce')], default='enforce', help_text='A rule in shadow counts whom it would refuse and refuses nobody.', max_length=16, verbose_name='mode')),
                ('methods', models.JSONField(blank=True, default=list, help_text='None chosen = every method.', verbose_name='methods')),
                ('path', models.CharField(blank=True, help_text='“/api/export/”, or a route as in urls.py: “items/&lt;int:pk&gt;/”.', max_length=500, verbose_name='path')),
                ('path_kind', models.CharField(choices=[('any', 'any path'), ('exact', 'exactly this path'), ('prefix', 'paths that start with it'), ('route', 'this route of urls.py')], default='any', max_length=16, verbose_name='path matches')),
                ('view_name', models.CharField(blank=True, help_text='With its namespace: “api:export”. Empty = every view.', max_length=200, verbose_name='view name')),
                ('scope', models.CharField(blank=True, help_text="Only where code asks for this scope: a DRF view's throttle_scope, say. Empty = everywhere.", max_length=100, verbose_name='scope')),
                ('partition_by', models.JSONField(blank=True, default=list, help_text='Each value has a counter of its own. None chosen = one counter that all callers share.', verbose_name='counted by')),
                ('missing_partition', models.CharField(choices=[('skip', 'does not meet this rule'), ('ip', 'is counted by IP address'), ('deny', 'is refused')], default='skip', help_text='An anonymous request has no user, and an unknown API key is none.', max_length=16, verbose_name='a request without such a value')),
                ('failure_policy', models.CharField(choices=[('open', 'allow every request'), ('closed', 'refuse every request (503)'), ('local', 'count in each process, with a share of the quota')], default='local', max_length=16, verbose_name='while Redis is out of reach')),
                ('cost', models.PositiveIntegerField(default=1, help_text='Units that one request spends.', validators=[django.core.validators.MinValueValidator(1)], verbose_name='cost')),
                ('priority', models.IntegerField(default=100, help_text='Every rule that matches applies; the lower number is decided and shown first.', verbose_name='priority')),
                ('message', models.CharField(blank=True, help_text='Shown to the caller who is refused.', max_length=300, verbose_name='message')),
                ('description', models.TextField(blank=True, help_text='For operators; callers never see it.', verbose_name='description')),
            ],
            options={
                'verbose_name': 'rule',
                'verbose_name_plural': 'rules',
                'ordering': ('priority', 'slug'),
                'constraints': [models.CheckConstraint(condition=models.Q(('cost__gte', 1)), name='ratelimiter_rule_cost')],
            },
        ),
        migrations.CreateModel(
            name='RuleSetState',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ('number', models.PositiveBigIntegerField(default=0, verbose_name='number')),
                ('epoch', models.BigIntegerField(verbose_name='epoch')),
            ],
            options={
                'verbose_name': 'rule set state',
                'verbose_name_plural': 'rule set state',
                'constraints': [models.CheckConstraint(condition=models.Q(('id', 1)), name='ratelimiter_state_one_row')],
            },
        ),
        migrations.CreateModel(
            name='Tier',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.SlugField(help_text='Its name in rules, reports and fixtures.', unique=True, verbose_name='slug')),
                ('name', models.CharField(max_length=100, verbose_name='name')),
                ('rank', models.IntegerField(default=0, help_text='A caller assigned to several tiers is in the one of highest rank.', verbose_name='rank')),
                ('default_for', models.CharField(choices=[('none', 'nobody'), ('anonymous', 'anonymous callers'), ('authenticated', 'authenticated callers')], default='none', help_text='Callers without an assignment who are in this tier.', max_length=16, verbose_name='default for')),
            ],
            options={
                'verbose_name': 'tier',
                'verbose_name_plural': 'tiers',
                'ordering': ('rank', 'slug'),
                'constraints': [models.UniqueConstraint(condition=models.Q(('default_for', 'none'), _negated=True), fields=('default_for',), name='ratelimiter_tier_one_default', violation_error_message='Another tier is the default for these callers already.')],
            },
        ),
        migrations.CreateModel(
            name='UsageBucket',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('rule_slug', models.CharField(max_length=50, verbose_name='rule')),
                ('tier_slug', models.CharField(blank=True, default='', max_length=50, verbose_name='tier')),
                ('granularity', models.CharField(choices=[('minute', 'minute')], default='minute', max_length=8, verbose_name='granularity')),
                ('start', models.DateTimeField(verbose_name='start')),
                ('allowed', models.PositiveBigIntegerField(default=0, verbose_name='allowed')),
                ('denied', models.PositiveBigIntegerField(default=0, verbose_name='denied')),
                ('shadow_denied', models.PositiveBigIntegerField(default=0, verbose_name='denied in shadow')),
                ('soft_exceeded', models.PositiveBigIntegerField(default=0, verbose_name='soft quota exceeded')),
            ],
            options={
                'verbose_name': 'usage bucket',
                'verbose_name_plural': 'usage buckets',
                'ordering': ('-start', 'rule_slug', 'tier_slug'),
                'indexes': [models.Index(fields=['granularity', 'start'], name='ratelimiter_usage_start')],
                'constraints': [models.UniqueConstraint(fields=('rule_slug', 'tier_slug', 'granularity', 'start'), name='ratelimiter_usage_bucket')],
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
                ('snapshot', models.JSONField(verbose_name='snapshot')),
                ('author', models.ForeignKey(db_constraint=False, blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='author')),
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
                ('algorithm', models.CharField(choices=django_ratelimiter.models.limits.algorithm_choices, default='sliding_window_counter', error_messages={'invalid_choice': '%(value)r is unknown to this version of the program.'}, max_length=32, verbose_name='algorithm')),
                ('quota', models.PositiveBigIntegerField(blank=True, help_text='Units per window.', null=True, verbose_name='quota')),
                ('window_seconds', models.DecimalField(blank=True, decimal_places=6, help_text='60 = a minute, 3600 = an hour, 86400 = a day.', max_digits=16, null=True, verbose_name='window in seconds')),
                ('burst', models.PositiveBigIntegerField(blank=True, help_text='What a full token bucket holds. Empty = the quota. Other algorithms have none.', null=True, verbose_name='burst')),
                ('soft_quota', models.PositiveBigIntegerField(blank=True, help_text='Requests beyond it still pass, and are counted and marked as such. Empty = none.', null=True, verbose_name='soft quota')),
                ('unlimited', models.BooleanField(default=False, help_text='The tier is not limited by this rule; no numbers then.', verbose_name='unlimited')),
                ('rule', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='django_ratelimiter.rule', verbose_name='rule')),
                ('tier', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limits', to='django_ratelimiter.tier', verbose_name='tier')),
            ],
            options={
                'verbose_name': 'limit',
                'verbose_name_plural': 'limits',
                'ordering': (models.OrderBy(models.F('tier__rank'), nulls_last=True), 'window_seconds', 'pk'),
                'constraints': [models.UniqueConstraint(fields=('rule', 'tier', 'algorithm', 'window_seconds'), name='ratelimiter_limit_of_tier'), models.UniqueConstraint(condition=models.Q(('tier', None)), fields=('rule', 'algorithm', 'window_seconds'), name='ratelimiter_limit_of_others', violation_error_message='Every other tier has a limit of this algorithm and window already.'), models.UniqueConstraint(condition=models.Q(('unlimited', True)), fields=('rule', 'tier'), name='ratelimiter_limit_unlimited_tier', violation_error_message='This tier is unlimited already.'), models.UniqueConstraint(condition=models.Q(('tier', None), ('unlimited', True)), fields=('rule',), name='ratelimiter_limit_unlimited_others', violation_error_message='Every other tier is unlimited already.'), models.CheckConstraint(condition=models.Q(models.Q(('burst__isnull', True), ('quota__isnull', True), ('soft_quota__isnull', True), ('unlimited', True), ('window_seconds__isnull', True)), models.Q(('quota__gte', 1), ('quota__isnull', False), ('unlimited', False), ('window_seconds__isnull', False)), _connector='OR'), name='ratelimiter_limit_numbers')],
            },
        ),
        migrations.CreateModel(
            name='TierAssignment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('api_key_hash', models.CharField(blank=True, default='', help_text='The SHA-256 digest of the key, in hex. The key itself is not kept.', max_length=64, validators=[django.core.validators.RegexValidator('\\A[0-9a-f]{64}\\Z', 'This is not a SHA-256 digest in lower-case hex.')], verbose_name='API key hash')),
                ('reason', models.CharField(blank=True, max_length=200, verbose_name='reason')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created at')),
                ('created_by', models.ForeignKey(db_constraint=False, blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='created by')),
                ('group', models.ForeignKey(db_constraint=False, blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='ratelimiter_assignments', to='auth.group', verbose_name='group')),
                ('tier', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='assignments', to='django_ratelimiter.tier', verbose_name='tier')),
                ('user', models.ForeignKey(db_constraint=False, blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='ratelimiter_assignments', to=settings.AUTH_USER_MODEL, verbose_name='user')),
            ],
            options={
                'verbose_name': 'tier assignment',
                'verbose_name_plural': 'tier assignments',
                'ordering': ('-created_at', '-pk'),
                'indexes': [models.Index(fields=['api_key_hash'], name='ratelimiter_assignment_key')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('api_key_hash', ''), ('group__isnull', True), ('user__isnull', False)), models.Q(('api_key_hash', ''), ('group__isnull', False), ('user__isnull', True)), models.Q(('group__isnull', True), ('user__isnull', True), models.Q(('api_key_hash', ''), _negated=True)), _connector='OR'), name='ratelimiter_assignment_one_subject', violation_error_message='Choose exactly one of user, group and API key.'), models.UniqueConstraint(fields=('user', 'tier'), name='ratelimiter_assignment_user', violation_error_message='This user is in this tier already.'), models.UniqueConstraint(fields=('group', 'tier'), name='ratelimiter_assignment_group', violation_error_message='This group is in this tier already.'), models.UniqueConstraint(condition=models.Q(('api_key_hash', ''), _negated=True), fields=('api_key_hash', 'tier'), name='ratelimiter_assignment_api_key', violation_error_message='This API key is in this tier already.')],
            },
        ),
    ]
