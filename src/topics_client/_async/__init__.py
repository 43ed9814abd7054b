"""The asynchronous client. `topics_client._sync` is generated from the modules here, all but `net`."""
