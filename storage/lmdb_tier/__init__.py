"""The disk tier: pieces in an LMDB environment."""
