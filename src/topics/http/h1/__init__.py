"""HTTP/1.1 connections: parsing, pipelining and responses."""
