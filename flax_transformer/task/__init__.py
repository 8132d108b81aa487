"""What can be trained end to end: a model, its data, an objective and a score, joined."""
