"""Lossless coding of KV pieces, chosen by dtype."""
