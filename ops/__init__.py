"""Tools for the owner of the machine. They read alongside a running daemon."""
