"""The picture of one job's life, drawn from the two databases alone."""
