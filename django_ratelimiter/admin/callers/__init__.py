"""Who calls: tiers, assignments and access entries."""
