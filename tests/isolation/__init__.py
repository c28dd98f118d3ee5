"""What one tenant can learn of another: nothing."""
