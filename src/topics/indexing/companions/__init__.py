"""Companions: the columns of sealed entries as files, which are mapped and not read.

A companion belongs to a range of seqs of one stream. It is made out of the columns that a fresh index has, by the same
functions, and answers by the same code, so that whether a range has one changes what a query costs and never what it
finds. `topics.indexing.companions.files` is how one is stored, `building` and `merging` make them, `part` answers.
"""
