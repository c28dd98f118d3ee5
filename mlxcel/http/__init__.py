"""The HTTP API over the generation port; the only room that imports Litestar."""
