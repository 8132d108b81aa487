"""The Transformer family in JAX/Flax as pure functions on pytrees."""
