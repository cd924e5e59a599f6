"""`python -m semel`, the same as the `semel` command."""

from semel.cli.main import main

if __name__ == "__main__":
    main()
