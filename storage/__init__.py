"""What survives a restart: the event log, the disk tier, and the threads that feed them."""
