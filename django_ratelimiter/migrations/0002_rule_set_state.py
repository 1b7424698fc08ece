import time

from django.db import migrations


def create_state(apps, schema_editor):
    """Make the one row whose lock numbers the versions. Its epoch tells this database's count from another's."""
    state = apps.get_model("django_ratelimiter", "RuleSetState")
    state.objects.using(schema_editor.connection.alias).get_or_create(
        id=1, defaults={"number": 0, "epoch": time.time_ns() // 1_000_000}
    )


class Migration(migrations.Migration):
    dependencies = [("django_ratelimiter", "0001_initial")]
    operations = [migrations.RunPython(create_state, migrations.RunPython.noop)]
