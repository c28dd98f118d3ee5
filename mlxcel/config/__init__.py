"""Flags and environment, read once into one frozen struct."""
