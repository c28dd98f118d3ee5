"""The endurance test, short."""
