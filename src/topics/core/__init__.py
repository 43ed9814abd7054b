"""What the product is about, as pure values: ids, records, topic settings, watermarks, limits and errors."""
