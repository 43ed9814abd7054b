// Finds the first record at or after a time. Times never fall within a topic, so halving finds it in a few small reads.

export async function seqAt(read, info, ms) {
  let low = info.earliest_seq - 1;
  let high = info.head_seq;
  let found = null;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const { records } = await read(middle, 1);
    const first = records[0];
    if (first === undefined || first.$seq > high) high = middle;
    else if (first.$ts >= ms) { found = first.$seq; high = middle; } else low = first.$seq;
  }
  return found;
}
