"""Training any function of a model and a batch: states, steps, optimizers, checkpoints and the loop."""
