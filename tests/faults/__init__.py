"""Real daemons on tiny models, with the world around them going wrong."""
