"""One file per family: its config, presets and module."""
