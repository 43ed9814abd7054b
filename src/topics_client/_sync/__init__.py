"""The synchronous client. The modules here, all but `net`, are generated from `topics_client._async`."""
