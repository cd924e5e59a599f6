"""What runs beside the requests of one process."""
