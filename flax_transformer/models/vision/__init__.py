"""Models of pictures, a file a family: the presets of its published sizes."""
