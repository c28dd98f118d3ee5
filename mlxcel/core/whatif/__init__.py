"""What another cache would have done with the same arrivals."""
