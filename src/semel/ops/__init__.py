"""Operations: the command line."""
