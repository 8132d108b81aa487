"""`python -m flax_transformer.cli`."""

from flax_transformer.cli import main

if __name__ == "__main__":
    main()
