"""Hits give the logits of cold runs: random sequences of requests through the real service."""
