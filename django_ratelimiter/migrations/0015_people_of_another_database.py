"""Lets users and groups be in another database than the app: no foreign key of the database points to them any more.

Databases that were migrated before lose the constraints here; new ones get none.
"""

from copy import copy
from typing import Any

import django_ratelimiter.models.people
from django.conf import settings
from django.db import migrations

COLUMNS = (
    ("RuleSetVersion", "author"),
    ("TierAssignment", "created_by"),
    ("TierAssignment", "group"),
    ("TierAssignment", "user"),
)


def drop_constraints(apps: Any, schema_editor: Any) -> None:
    """Drop the foreign keys of these columns, as far as there are any."""
    connection = schema_editor.connection
    for name, column in COLUMNS:
        model = apps.get_model("django_ratelimiter", name)
        field = model._meta.get_field(column)
        with connection.cursor() as cursor:
            constraints = connection.introspection.get_constraints(cursor, model._meta.db_table).values()
        if any(each["foreign_key"] and each["columns"] == [field.column] for each in constraints):
            before = copy(field)
            before.db_constraint = True
            schema_editor.alter_field(model, before, field)


class Migration(migrations.Migration):

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('django_ratelimiter', '0014_exact_texts'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # MySQL alters no table within a transaction that it could roll back.
        migrations.RunPython(
            drop_constraints, migrations.RunPython.noop, atomic=False, hints={"model_name": "tierassignment"}
        ),
        migrations.SeparateDatabaseAndState(state_operations=[
                migrations.AlterField(
                    model_name='rulesetversion',
                    name='author',
                    field=django_ratelimiter.models.people.PersonKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.set_null, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='author'),
                ),
                migrations.AlterField(
                    model_name='tierassignment',
                    name='created_by',
                    field=django_ratelimiter.models.people.PersonKey(blank=True, db_constraint=False, editable=False, null=True, on_delete=django_ratelimiter.models.people.set_null, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='created by'),
                ),
                migrations.AlterField(
                    model_name='tierassignment',
                    name='group',
                    field=django_ratelimiter.models.people.PersonKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.cascade, related_name='ratelimiter_assignments', to='auth.group', verbose_name='group'),
                ),
                migrations.AlterField(
                    model_name='tierassignment',
                    name='user',
                    field=django_ratelimiter.models.people.PersonKey(blank=True, db_constraint=False, null=True, on_delete=django_ratelimiter.models.people.cascade, related_name='ratelimiter_assignments', to=settings.AUTH_USER_MODEL, verbose_name='user'),
                ),
        ]),
    ]
