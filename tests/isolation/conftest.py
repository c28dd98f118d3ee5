"""Models with a chat template."""

from tests.clients.conftest import talker

__all__ = ["talker"]
