"""Has MySQL and MariaDB tell texts apart as Python and other databases do.

Their own collations take "Api" for "api", and often "é" for "e". So two digests would be one caller,
and two rules could not have slugs that differ so. Each column gets the collation of its character set that compares
byte by byte.
"""

from typing import Any

from django.db import migrations

COLUMNS = (
    ("AccessEntry", "value"),
    ("Rule", "slug"),
    ("Tier", "slug"),
    ("TierAssignment", "api_key_hash"),
    ("TierAssignment", "partition"),
    ("TopPartition", "partition"),
    ("TopPartition", "rule_slug"),
    ("UsageBatch", "batch_id"),
    ("UsageBucket", "rule_slug"),
    ("UsageBucket", "tier_slug"),
    ("UsageEpisode", "name"),
    ("UsageSample", "partition_hash"),
    ("UsageSample", "rule_slug"),
)


def compare_bytes(apps: Any, schema_editor: Any) -> None:
    """Give each column the collation `…_bin`."""
    connection = schema_editor.connection
    if connection.vendor != "mysql":
        return
    for name, column in COLUMNS:
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
    dependencies = [
        ("django_ratelimiter", "0013_rule_starts_in_shadow"),
    ]

    operations = [
        # MySQL alters no table within a transaction that it could roll back.
        migrations.RunPython(
            compare_bytes, migrations.RunPython.noop, atomic=False, hints={"model_name": "usagebucket"}
        ),
    ]
