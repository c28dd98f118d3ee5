"""The pure core: decisions as values. No clock, I/O, randomness, logging or threads."""
