"""Models of videos, frames that follow each other."""
