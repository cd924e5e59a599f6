"""What all SQL stores share: statements and migrations as files, and the plans that use them."""
