"""`firstlight cache serve`: entries and leases for all machines that compile the same."""
