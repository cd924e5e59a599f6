"""The application under load, and what is put around it; imported by the server's process."""
