"""Models of clips, frames that follow each other."""
