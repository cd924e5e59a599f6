"""`python -m semel`, the same as the `semel` command."""

from semel.ops.cli import main

if __name__ == "__main__":
    main()
