"""What makes inputs of a model from what people have, as a checkpoint folder says: tokenizers and chat templates."""
