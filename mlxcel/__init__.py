"""A daemon that serves MLX language models and never computes the same prompt prefix twice."""
