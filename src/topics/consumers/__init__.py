"""Named consumers: committed cursors of a topic that the server stores."""
