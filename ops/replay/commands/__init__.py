"""The commands of mlxcel-replay, a module a kind."""
