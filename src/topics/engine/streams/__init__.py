"""What makes a topic a stream, as recovery, checkpoints and the other protocol meet it."""
