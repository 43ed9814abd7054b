"""The archive as Apache Iceberg tables."""
