"""Faults that users of other servers reported, each a test here; INDEX.md says where."""
