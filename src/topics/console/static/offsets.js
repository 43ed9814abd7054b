// Offsets of streams: 128 bits as 26 digits of Crockford's base 32, of which the middle 64 count the entries before.

const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

export function decode(offset) {
  let word = 0n;
  for (const digit of offset) word = (word << 5n) | BigInt(DIGITS.indexOf(digit.toUpperCase()));
  return { epoch: word >> 96n, counter: Number((word >> 32n) & 0xffffffffffffffffn) };
}

export function encode(epoch, counter) {
  let word = (BigInt(epoch) << 96n) | (BigInt(counter) << 32n);
  let text = "";
  for (let i = 0; i < 26; i += 1) { text = DIGITS[Number(word & 31n)] + text; word >>= 5n; }
  return text;
}
