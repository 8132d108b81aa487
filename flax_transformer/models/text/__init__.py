"""Models of text, a file a family: the presets of its published sizes."""
