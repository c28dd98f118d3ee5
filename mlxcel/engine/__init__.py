"""The engine room: the only importer of MLX. Start at `loading.load_engine` and `engine.MlxEngine`."""
