"""Pipeline: turns sealed segments into products (archive, index files, typed tables), round by round.

A round reads the catalog, asks every product for its missing work, runs all of it as one Spark job, and lets every
product publish its results. `products` has the interface, `rounds` runs a round, `jobs` runs and bisects its job,
`executors` runs tasks in Spark or inline, `pipeline_worker` is the worker process and `supervisor` the part of the
server that starts it.
"""
