"""Full-text search and aggregation: query language, memory index, index files, the search process and the search
service.
"""
