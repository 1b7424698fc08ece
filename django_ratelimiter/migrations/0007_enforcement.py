from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0006_access_entries'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='rulesetstate',
            options={'permissions': [('switch_enforcement', 'Can stop and resume all enforcement')], 'verbose_name': 'rule set state', 'verbose_name_plural': 'rule set state'},
        ),
        migrations.AddField(
            model_name='rulesetstate',
            name='enforcement_enabled',
            field=models.BooleanField(db_default=True, default=True, verbose_name='enforcement enabled'),
        ),
    ]
