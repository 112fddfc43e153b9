"""Exact, seeded corpus samples: row-id hashing, selection, shard plans, shard writing."""
