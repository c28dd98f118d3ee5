"""The history of a cache, read back from its log."""
