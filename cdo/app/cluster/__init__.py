"""A batch on the workers of a Dask cluster: one process holds the batch and serves leases, the workers run its items.

Here live both sides and what they say to each other: JSON texts in calls that the batch's process makes through Dask.
Nothing here prints.
"""
