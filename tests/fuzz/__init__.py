"""What strangers may hand us: bytes, bodies, files. Seeded; `slow` variants look longer."""
