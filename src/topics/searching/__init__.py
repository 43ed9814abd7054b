"""The process that searches, beside a server: its messages, its work, and how a server keeps it.

It knows nothing of topics, files or HTTP. It is given entries as they are stored and asked queries about them.
"""
