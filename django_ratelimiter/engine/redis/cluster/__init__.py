"""Redis Cluster: nodes, topology, shards."""
