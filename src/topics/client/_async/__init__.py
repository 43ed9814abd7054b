"""The client for asyncio. The modules here, all but `net`, are what `topics.client._sync` is generated from."""
