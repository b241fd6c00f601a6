"""The experiments: named scripts of real commands, each with the facts that it must show."""
