"""The embedded model: where it lives, fetching it, checking it, converting it."""
