// CBOR to values: integers, text, bytes, arrays, maps (as Map); a float is `{ float }`, so that none passes for an integer. Lengths are checked before anything is made.

const CBOR_DEPTH = 32;

class Cbor {
  constructor(data) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = 0;
  }

  static decode(data) {
    const reader = new Cbor(data), value = reader.item(0);
    if (reader.at !== data.length) throw new Error("the index has bytes after its end");
    return value;
  }

  need(count) {
    if (!(count <= this.data.length - this.at)) throw new Error("the index ends inside a value");
  }

  /** The kind of an item, its low bits, and its number; -1 for an indefinite length. */
  head() {
    this.need(1);
    const first = this.data[this.at++], low = first & 31;
    if (low < 24) return [first >> 5, low, low];
    if (low === 31 && first >> 5 > 1 && first >> 5 < 6) return [first >> 5, low, -1];
    if (low > 27) throw new Error("invalid CBOR in the index");
    const size = 1 << (low - 24);
    this.need(size);
    const wide = size === 8 ? this.view.getBigUint64(this.at) : null;
    const number = size === 1 ? this.data[this.at] : size === 2 ? this.view.getUint16(this.at) : size === 4 ? this.view.getUint32(this.at) : Number(wide);
    if (first >> 5 === 7) return [7, low, this.float(size)];
    this.at += size;
    return [first >> 5, low, number];
  }

  float(size) {
    const { view, at } = this;
    this.at += size;
    if (size === 1) return this.data[at];
    if (size === 4) return view.getFloat32(at);
    if (size === 8) return view.getFloat64(at);
    const half = view.getUint16(at), exponent = (half >> 10) & 31, part = half & 1023, sign = half >> 15 ? -1 : 1;
    return sign * (exponent === 31 ? (part ? NaN : Infinity) : exponent ? 2 ** (exponent - 25) * (1024 + part) : 2 ** -24 * part);
  }

  item(depth) {
    if (depth > CBOR_DEPTH) throw new Error("the index is nested too deeply");
    const [kind, low, number] = this.head();
    switch (kind) {
      case 0: return number;
      case 1: return -1 - number;
      case 2: return this.bytes(number);
      case 3: return this.text(number);
      case 4: return this.array(number, depth);
      case 5: return this.map(number, depth);
      case 6: return this.item(depth + 1);
      default: return low === 20 ? false : low === 21 ? true : low < 25 ? null : { float: number };
    }
  }

  bytes(length) {
    if (length < 0) throw new Error("text or bytes of indefinite length in the index");
    this.need(length);
    return this.data.subarray(this.at, (this.at += length));
  }

  text(length) {
    return utf8(this.bytes(length));
  }

  /** Whether an array or map of indefinite length ends here. */
  ends() {
    this.need(1);
    if (this.data[this.at] !== 255) return false;
    this.at += 1;
    return true;
  }

  array(count, depth) {
    const values = [];
    if (count >= 0) this.need(count);
    while (count < 0 ? !this.ends() : values.length < count) values.push(this.item(depth + 1));
    return values;
  }

  map(count, depth) {
    const values = new Map();
    if (count >= 0) this.need(2 * count);
    for (let done = 0; count < 0 ? !this.ends() : done < count; done++) {
      const key = this.item(depth + 1);
      if (values.has(key)) throw new Error("a key occurs twice in the index");
      values.set(key, this.item(depth + 1));
    }
    return values;
  }
}

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function utf8(data) {
  try { return UTF8.decode(data); } catch { throw new Error("invalid UTF-8 in a string"); }
}
