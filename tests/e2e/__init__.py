"""The real daemon as a subprocess, driven by real clients."""
