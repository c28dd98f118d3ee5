"""Decisions as exact lists of events."""
