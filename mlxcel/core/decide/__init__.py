"""Decisions: `decide(state, command) -> events`. Nothing here changes the state."""
