"""Checking a data directory, and repairing it on request."""
