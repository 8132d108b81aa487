"""What makes the documentation site: `make docs`."""
