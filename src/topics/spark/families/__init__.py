"""Index families: companions of the segments of streams, as a product of the pipeline.

Which segments lack one follows from the catalog and the manifests (`planning`); tasks make them of segments and merge
small ones (`tasks`). What a companion holds, and how it is asked, is in `topics.indexing.companions`.
"""
