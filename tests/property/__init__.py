"""Properties of the core over random histories."""
