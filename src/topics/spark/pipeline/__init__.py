"""The pipeline: what turns sealed segments into products, round by round.

A round looks at the catalog, asks every product what it has to do, has all of it done as one Spark job, and lets every
product publish its own. `products` is the frame and `archiving` the first product; `rounds` runs them, `executors` are
where the work is done, `worker` is the process that goes on and on, and `supervisor` is how a server keeps it.
"""
