"""What may be compared with what, and what came of it: for gate, replication, site."""
