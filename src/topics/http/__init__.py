"""HTTP/1.1 on httptools: it knows connections and messages, and nothing of the product."""
