"""How fast each step is, beside what a user would otherwise run, measured in one run on one machine."""
