"""What people and programs ask to see how streams and the server are doing. Nothing here changes anything."""
