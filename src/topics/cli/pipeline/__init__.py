"""`topics pipeline`: the pipeline by hand."""
