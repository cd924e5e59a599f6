"""One module for each framework: fastapi, flask, litestar, django/."""
