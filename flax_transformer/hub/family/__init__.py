"""Families of checkpoints, a file each: what its config.json says, its weight table, its architectures (`FAMILIES`)."""
