"""One-step changes of stored formats; imports no type of the running program."""
