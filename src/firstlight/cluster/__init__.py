"""Work spread with Ray: toys, grids, benchmark samples and replicas on many machines.

    from firstlight import cluster

    cluster.toys(model, 1_000_000, key=1, on="ray://head:10001", checkpoint="toys")

The rooms whose work is spread know nothing of this one. Ray is imported when something is to run
on it; without `on` the same functions work on this machine alone.
"""
