"""The real app over the scripted service."""

from tests.http.conftest import running, serve, tiny, tiny_directory

__all__ = ["running", "serve", "tiny", "tiny_directory"]
