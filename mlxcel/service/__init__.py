"""The single writer of the cache, and the loop that serves requests with it."""
