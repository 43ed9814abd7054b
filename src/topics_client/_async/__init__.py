"""The client for asyncio. The modules here, all but `net`, are what `topics_client._sync` is generated from."""
