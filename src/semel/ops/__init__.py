"""Operations: events, metrics, logs, the command line and the console."""
