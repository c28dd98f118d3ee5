"""Commands for whoever runs the daemon: ask a running one, check a machine, install it as a service."""
