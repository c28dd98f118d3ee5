"""Why the hit rate is low, from the log, with evidence."""
