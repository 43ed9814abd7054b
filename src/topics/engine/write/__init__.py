"""What is decided about writes: appends, single records that share a block, topics, deletes, room and seqs."""
