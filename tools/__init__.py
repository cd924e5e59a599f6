"""What is run by hand or by `make check`, and is not part of the package."""
