"""The official clients against the real daemon on tiny models."""
