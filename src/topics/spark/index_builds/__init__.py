"""Index builds: index files of sealed segments, built by the pipeline."""
