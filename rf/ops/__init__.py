"""All ops, one family a file."""
