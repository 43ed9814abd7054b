"""The protocols: parse a request, call the engine, render the answer."""
