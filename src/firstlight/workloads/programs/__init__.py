"""The workload programs, one file each, loaded by name in a measured process."""
