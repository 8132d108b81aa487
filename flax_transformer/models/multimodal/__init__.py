"""Models that read several kinds of inputs, a file a family: the presets of its published sizes."""
