from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('django_ratelimiter', '0012_hours_and_days_of_minutes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='rule',
            name='mode',
            field=models.CharField(choices=[('off', 'off'), ('shadow', 'shadow'), ('enforce', 'enforce')], default='shadow', help_text='Shadow: count which requests would be rejected, and reject none. Enforce: reject them.', max_length=16, verbose_name='mode'),
        ),
    ]
