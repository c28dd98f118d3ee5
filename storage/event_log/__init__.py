"""Append-only event log: framed records in segments, group-committed."""
