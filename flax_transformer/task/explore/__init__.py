"""A model to be asked: the explorer's views, its page, its server, and its widget."""
