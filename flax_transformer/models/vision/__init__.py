"""Models of images, a file a family: the presets of its published sizes."""
