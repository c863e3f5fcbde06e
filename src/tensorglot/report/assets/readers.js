// The headers of BinTensors, zTensor and safetensors files, read by the browser. No tensor is read.
// A reader gives the same columns that the report has. It checks what it needs to show a file correctly;
// `tensorglot verify` checks everything.

const HEADER_MOST = 100_000_000, RANK_MOST = 64;
const BITS = {
  bool: 8, int8: 8, uint8: 8, int16: 16, uint16: 16, int32: 32, uint32: 32, int64: 64, uint64: 64, float16: 16, bfloat16: 16,
  float32: 32, float64: 64, complex64: 64, complex128: 128, float8_e3m4: 8, float8_e4m3: 8, float8_e4m3b11fnuz: 8, float8_e4m3fn: 8,
  float8_e4m3fnuz: 8, float8_e5m2: 8, float8_e5m2fnuz: 8, float8_e8m0fnu: 8, float6_e2m3fn: 6, float6_e3m2fn: 6, float4_e2m1fn: 4,
  int4: 4, uint4: 4, int2: 2, uint2: 2, int1: 1, uint1: 1, int128: 128, uint128: 128, float128: 128,
};

const truncated = (needed, has) => new Error(`file truncated: needs ${count(needed)} bytes, has ${count(has)}`);

async function readFile(file) {
  const slice = async (begin, end) => {
    if (end > file.size) throw truncated(end, file.size);
    return new Uint8Array(await file.slice(begin, end).arrayBuffer());
  };
  const magic = await slice(0, 8), text = String.fromCharCode(...magic);
  if (text === "ZTEN0001") return readZtensor01(file, slice);
  if (text === "ZTEN1000") return readZtensor1(file, slice);
  if (text === "\x89ZT2\r\n\x1a\n") return readZtensor2(file, slice);
  if (/^(ZTEN|\x89ZT)/.test(text)) throw new Error("a version of zTensor that this page does not know");
  const length = uint64(magic, 0);
  if (length > HEADER_MOST) throw new Error("not a BinTensors, zTensor or safetensors file, or its header is larger than 100 MB; `tensorglot view` opens other formats");
  const header = await slice(8, 8 + length);
  return header[0] === 0x7b ? readSafetensors(file, header) : readBintensors(file, header);
}

function uint64(data, at) {
  return Number(new DataView(data.buffer, data.byteOffset).getBigUint64(at, true));
}

/** A number that this page can count with. */
function size(value, what) {
  if (!Number.isSafeInteger(value) || value < 0) throw new Error(`${what} is not an integer from 0 to 2^53 − 1`);
  return value;
}

/** The last tensor must end where the file does. */
function checkSize(end, fileSize) {
  if (end > fileSize) throw truncated(end, fileSize);
  if (end < fileSize) throw new Error(`${plural(fileSize - end, "byte")} after the last tensor`);
}

const product = (shape) => shape.reduce((a, b) => a * b, 1);
const nbytesOf = (dtype, shape) => Math.ceil((product(shape) * BITS[dtype]) / 8);

/** Columns from tensors `{name, dtype, shape, layout, attributes, parts: [{begin, end, nbytes, encoding, checksum, here}]}`. */
function columns(file, format, tensors, metadata, { headerNbytes, first = 8, last = file.size }) {
  const names = new Set(tensors.map((tensor) => tensor.name));
  if (names.size !== tensors.length) throw new Error("two tensors have the same name");
  const table = (values) => {
    const places = new Map();
    const codes = values.map((value) => { if (!places.has(value)) places.set(value, places.size); return places.get(value); });
    return { values: [...places.keys()], codes };
  };
  const sum = (tensor, key) => tensor.parts.reduce((total, part) => total + key(part), 0);
  const spans = [[], [], [], []];
  tensors.forEach((tensor, i) => {
    if (tensor.shape.length > RANK_MOST) throw new Error(`'${show(tensor.name, 80)}' has more than ${RANK_MOST} dimensions`);
    for (const part of tensor.parts) {
      if (part.here === false) continue;
      if (part.begin < first || part.end > last) throw new Error(`the bytes of '${show(tensor.name, 80)}' are not where tensors can be: file truncated?`);
      [part.begin, part.end, i, 0].forEach((value, column) => spans[column].push(value));
    }
  });
  return {
    path: file.name,
    summary: { format },
    metadata: metadata instanceof Map ? plain(metadata) : metadata,
    notes: [`The header has ${bytes(headerNbytes)}; nothing else of the file was read.`],
    names: tensors.map(({ name }) => name),
    shapes: tensors.map(({ shape }) => shape),
    nbytes: tensors.map((tensor) => sum(tensor, (part) => part.nbytes)),
    stored: tensors.map((tensor) => sum(tensor, (part) => part.end - part.begin)),
    offsets: tensors.map((tensor) => tensor.parts[0].begin),
    dtype: table(tensors.map(({ dtype }) => dtype)),
    encoding: table(tensors.map((tensor) => tensor.parts[0].encoding ?? "raw")),
    layout: table(tensors.map((tensor) => tensor.layout ?? "dense")),
    checksum: table(tensors.map((tensor) => tensor.parts[0].checksum?.split(":")[0] ?? null)),
    attributes: tensors.map((tensor) => (tensor.attributes?.size ? plain(tensor.attributes) : null)),
    files: [{ path: file.name, nbytes: file.size }],
    spans,
  };
}

/** Values of CBOR as values of JSON. */
function plain(value) {
  if (value instanceof Map) return Object.fromEntries([...value].map(([key, item]) => [typeof key === "string" ? key : String(key), plain(item)]));
  if (value instanceof Object && "float" in value) return value.float;
  if (value instanceof Uint8Array) return [...value.subarray(0, 1000)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return Array.isArray(value) ? value.map(plain) : value;
}

// safetensors: u64 N, a JSON object, data

const SAFETENSORS_DTYPES = {
  BOOL: "bool", F4: "float4_e2m1fn", F6_E2M3: "float6_e2m3fn", F6_E3M2: "float6_e3m2fn", U8: "uint8", I8: "int8", F8_E5M2: "float8_e5m2",
  F8_E4M3: "float8_e4m3fn", F8_E8M0: "float8_e8m0fnu", F8_E4M3FNUZ: "float8_e4m3fnuz", F8_E5M2FNUZ: "float8_e5m2fnuz", I16: "int16",
  U16: "uint16", F16: "float16", BF16: "bfloat16", I32: "int32", U32: "uint32", F32: "float32", C64: "complex64", F64: "float64",
  I64: "int64", U64: "uint64",
};

function readSafetensors(file, header) {
  let found;
  try { found = JSON.parse(utf8(header)); } catch (error) { throw new Error(`the header is not valid JSON: ${error.message}`); }
  const tensors = [];
  for (const [name, fields] of Object.entries(found)) {
    if (name === "__metadata__") continue;
    const dtype = SAFETENSORS_DTYPES[fields?.dtype];
    if (!dtype || !Array.isArray(fields.shape) || fields.data_offsets?.length !== 2) throw new Error(`'${show(name, 80)}' is not a tensor of safetensors`);
    const shape = fields.shape.map((n) => size(n, "a dimension"));
    const [begin, end] = fields.data_offsets.map((n) => size(n, "an offset") + 8 + header.length);
    if (end - begin !== nbytesOf(dtype, shape)) throw new Error(`the offsets of '${show(name, 80)}' do not match its type and shape`);
    tensors.push({ name, dtype, shape, parts: [{ begin, end, nbytes: end - begin }] });
  }
  tensors.sort((a, b) => a.parts[0].begin - b.parts[0].begin);  // an object of JavaScript does not keep the order of all keys
  let end = 8 + header.length;
  for (const { name, parts: [part] } of tensors) {
    if (part.begin !== end && part.end !== part.begin) throw new Error(`'${show(name, 80)}' does not begin where the tensor before it ends`);
    end = Math.max(end, part.end);
  }
  checkSize(end, file.size);
  return columns(file, "safetensors@1", tensors, found.__metadata__ ?? null, { headerNbytes: header.length });
}

// BinTensors: u64 N, a bincode header in one of two layouts, data

const BINTENSORS_DTYPES = ["bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "float64", "int64", "uint64"];

class Bincode {
  constructor(data) { this.data = data; this.view = new DataView(data.buffer, data.byteOffset, data.byteLength); this.at = 0; }
  need(nbytes) { if (!(nbytes <= this.data.length - this.at)) throw new Error("the header ends inside a value"); }
  byte() { this.need(1); return this.data[this.at++]; }

  varint() {
    const first = this.byte();
    if (first < 251) return first;
    const width = { 251: 2, 252: 4, 253: 8 }[first];
    if (!width) throw new Error("a varint of more than 64 bits");
    this.need(width);
    const value = width === 2 ? this.view.getUint16(this.at, true) : width === 4 ? this.view.getUint32(this.at, true) : Number(this.view.getBigUint64(this.at, true));
    if (value < { 2: 251, 4: 65536, 8: 4294967296 }[width]) throw new Error("a varint is not in its shortest form");
    this.at += width;
    return size(value, "a number of the header");
  }

  count(least) { const n = this.varint(); this.need(n * least); return n; }
  text() { const length = this.varint(); this.need(length); return utf8(this.data.subarray(this.at, (this.at += length))); }
  several(least, read) { return Array.from({ length: this.count(least) }, read); }
}

function readBintensors(file, header) {
  if (header.length % 8) throw new Error("the length of the header is not a multiple of 8");
  const read = [], errors = [];
  for (const layout of [0, 1]) {
    try { read.push([layout, bintensorsLayout(header, layout, file.size)]); } catch (error) { errors.push(error); }
  }
  if (!read.length) throw errors[1].message === errors[0].message ? errors[0] : new Error(`${errors[0].message}; in the other layout: ${errors[1].message}`);
  if (read.length > 1) throw new Error("valid in both layouts of BinTensors, with different contents");
  const [[layout, { tensors, metadata }]] = read;
  return columns(file, `bintensors@${layout}`, tensors, metadata, { headerNbytes: header.length });
}

function bintensorsLayout(header, layout, fileSize) {
  const reader = new Bincode(header), option = reader.byte();
  if (option > 1) throw new Error("the metadata tag is neither 0 nor 1");
  const entries = option ? reader.several(2, () => [reader.text(), reader.text()]) : null;
  const metadata = entries && new Map(entries);
  if (entries && metadata.size !== entries.length) throw new Error("a metadata key occurs twice");
  let end = 8 + header.length;
  const tensors = reader.several(4, () => {
    const name = layout === 1 ? reader.text() : null, dtype = BINTENSORS_DTYPES[reader.varint()];
    if (!dtype) throw new Error("unknown dtype code");
    const shape = reader.several(1, () => reader.varint());
    const begin = reader.varint() + 8 + header.length, stop = reader.varint() + 8 + header.length;
    if (begin !== end) throw new Error("a tensor does not begin where the one before it ends");
    end = stop;
    if (stop - begin !== nbytesOf(dtype, shape)) throw new Error("the offsets do not match the size that dtype and shape give");
    return { name, dtype, shape, parts: [{ begin, end: stop, nbytes: stop - begin }] };
  });
  if (layout === 0) nameByMap(reader, tensors);
  const padding = header.subarray(reader.at);
  if (padding.length > 7 || padding.some((byte) => byte !== 32)) throw new Error("bytes other than spaces after the header");
  checkSize(end, fileSize);
  return { tensors, metadata };
}

function nameByMap(reader, tensors) {
  const entries = reader.several(2, () => [reader.text(), reader.varint()]);
  if (entries.length !== tensors.length) throw new Error("the index map does not have one entry for each tensor");
  for (const [name, i] of entries) {
    if (!tensors[i] || tensors[i].name !== null) throw new Error("the index map refers to no tensor, or to one twice");
    tensors[i].name = name;
  }
}

// zTensor: magic, blobs, a CBOR index, its size

const ZTENSOR_DTYPES = {
  f64: "float64", f32: "float32", f16: "float16", bf16: "bfloat16", i64: "int64", i32: "int32", i16: "int16", i8: "int8", u64: "uint64",
  u32: "uint32", u16: "uint16", u8: "uint8", bool: "bool", f8_e4m3: "float8_e4m3fn", f8_e4m3fn: "float8_e4m3fn", f8_e5m2: "float8_e5m2",
  f8_e4m3fnuz: "float8_e4m3fnuz", f8_e5m2fnuz: "float8_e5m2fnuz", f8_e8m0: "float8_e8m0fnu", f4_e2m1: "float4_e2m1fn",
};
const SPARSE = { sparse_csr: "zt.sparse_csr/1", sparse_coo: "zt.sparse_coo/1" };
const DEQUANTIZED = /^zt\.(quant_group|mx)\//;

async function ztensorIndex(file, slice, end) {
  const length = uint64(await slice(end, end + 8), 0);
  if (length > end - 8 || (!length && end > 8)) throw new Error("file truncated or damaged: the last 8 bytes are not the size of an index");
  if (length > HEADER_MOST) throw new Error("the index is larger than 100 MB");
  return [length ? Cbor.decode(await slice(end - length, end)) : [], { headerNbytes: length, first: 64, last: end - length }];
}

function expectMap(value, what) {
  if (!(value instanceof Map)) throw new Error(`${what} is not a map`);
  return value;
}

function shapeOf(value, name) {
  if (!Array.isArray(value)) throw new Error(`'${show(name, 80)}' has no shape`);
  return value.map((n) => size(n, "a dimension"));
}

async function readZtensor01(file, slice) {
  if (file.size < 16) throw truncated(16, file.size);
  const [index, places] = await ztensorIndex(file, slice, file.size - 8);
  if (!Array.isArray(index)) throw new Error("the index is not an array");
  const entries = index.map((fields) => {
    expectMap(fields, "an entry of the index");
    const [name, dtype, encoding] = ["name", "dtype", "encoding"].map((key) => fields.get(key));
    if (![name, dtype, encoding].every((text) => typeof text === "string")) throw new Error("an entry of the index has no name, no dtype or no encoding");
    const shape = shapeOf(fields.get("shape"), name), begin = size(fields.get("offset"), "an offset"), stored = size(fields.get("size"), "a size");
    if (![undefined, "little", "big"].includes(fields.get("data_endianness"))) throw new Error(`data_endianness of '${show(name, 80)}' must be little or big`);
    if (begin % 64) throw new Error(`the offset of '${show(name, 80)}' is not a multiple of 64`);
    const whole = BITS[dtype] && encoding !== "raw" ? nbytesOf(dtype, shape) : stored;
    if (BITS[dtype] && encoding === "raw" && stored !== nbytesOf(dtype, shape)) throw new Error(`the size of '${show(name, 80)}' does not match its type and shape`);
    return { name, dtype, shape, fields, parts: [{ begin, end: begin + stored, nbytes: whole, encoding, checksum: fields.get("checksum") }] };
  });
  const holder = entries.find(({ name, dtype, shape, fields }) => name === "__metadata__" && dtype === "uint8" && product(shape) === 0 && fields.get("metadata") instanceof Map);
  const tensors = joinParts(entries.filter((entry) => entry !== holder));
  return columns(file, "ztensor@0.1", tensors, holder ? holder.fields.get("metadata") : null, places);
}

const KNOWN_FIELDS = new Set(["name", "offset", "size", "dtype", "shape", "encoding", "data_endianness", "checksum"]);

/** Entries that are parts of one tensor, as that tensor; the others with their custom fields. */
function joinParts(entries) {
  const wholes = new Map(), tensors = [];
  for (const entry of entries) {
    const { fields } = entry, of = fields.get("part_of"), part = fields.get("part");
    const logical = fields.get("logical_type");
    const dtype = entry.dtype === "uint8" && typeof logical === "string" && of !== undefined ? logical : entry.dtype;
    if (typeof of === "string" && typeof part === "string" && entry.name === `${of}#${part}`) {
      if (!wholes.has(of)) {
        const layout = fields.get("logical_layout") ?? fields.get("layout"), shape = fields.get("logical_shape");
        if (Array.isArray(shape) && typeof layout === "string") {
          const whole = { name: of, shape: shapeOf(shape, of), layout, attributes: fields.get("attributes"), parts: [], partTypes: new Map() };
          wholes.set(of, whole);
          tensors.push(whole);
        }
      }
      const whole = wholes.get(of);
      if (whole) { whole.parts.push(...entry.parts); whole.partTypes.set(part, dtype); continue; }
    }
    const custom = [...fields].filter(([key, value]) => !KNOWN_FIELDS.has(key) && !(key === "layout" && value === "dense"));
    tensors.push({ ...entry, attributes: new Map(custom) });
  }
  for (const whole of wholes.values()) whole.dtype = wholeType(whole);
  return tensors;
}

/** The element type of a tensor of several parts. */
function wholeType({ layout, attributes, partTypes }) {
  const declared = attributes instanceof Map ? attributes.get("dynd") : undefined;
  if (typeof declared === "string") return declared.replace(/^(\d+ \* )*/, "");
  if (DEQUANTIZED.test(layout)) return "float32";
  return partTypes.get("data") ?? partTypes.get("values") ?? [...partTypes.values()][0];
}

async function readZtensor1(file, slice) {
  const tail = file.size >= 24 ? String.fromCharCode(...(await slice(file.size - 8, file.size))) : "";
  const [root, places] = await ztensorIndex(file, slice, file.size - (tail === "ZTEN1000" ? 16 : 8)), index = expectMap(root, "the index");
  const version = /^1\.[012](?=\.|$)/.exec(String(index.get("version")))?.[0] ?? (tail === "ZTEN1000" ? "1.2" : "1.0");
  const objects = expectMap(index.get("objects") ?? index.get("tensors") ?? new Map(), "the objects");
  const tensors = [...objects].map(([name, fields]) => {
    const kind = expectMap(fields, "an object").get("format"), partTypes = new Map();
    const parts = [...expectMap(fields.get("components"), "the components")].map(([role, part]) => {
      const code = part.get("dtype") ?? (["indices", "indptr", "coords"].includes(role) ? "uint64" : fields.get("dtype"));
      partTypes.set(role, ZTENSOR_DTYPES[code] ?? code);
      const begin = size(part.get("offset"), "an offset"), stored = size(part.get("length"), "a length");
      const encoding = part.get("encoding") ?? "raw", shape = shapeOf(fields.get("shape"), name);
      const whole = part.get("uncompressed_length") ?? (encoding !== "raw" && kind === "dense" ? nbytesOf(partTypes.get(role), shape) : stored);
      return { begin, end: begin + stored, nbytes: size(whole, "a length"), encoding, checksum: part.get("digest") };
    });
    return { name, shape: shapeOf(fields.get("shape"), name), dtype: partTypes.get("data") ?? partTypes.get("values"), layout: SPARSE[kind] ?? kind, attributes: fields.get("attributes"), parts };
  });
  return columns(file, `ztensor@${version}`, tensors, index.get("attributes") ?? null, places);
}

async function readZtensor2(file, slice) {
  if (file.size < 48) throw truncated(48, file.size);
  const footer = await slice(file.size - 40, file.size);
  if (String.fromCharCode(...footer.subarray(32)) !== "\x89ZT2\r\n\x1a\n") throw new Error("file truncated or damaged: wrong magic number at its end");
  const begin = size(uint64(footer, 0), "an offset"), length = size(uint64(footer, 8), "a length");
  if (!length) throw new Error("a data shard of zTensor 2, without a manifest: open the root file");
  if (length > HEADER_MOST || begin + length > file.size - 40) throw new Error("the manifest is not in the file, or larger than 100 MB");
  const root = expectMap(Cbor.decode(await slice(begin, begin + length)), "the manifest");
  const tensors = [...expectMap(root.get("objects"), "the objects")].map(([name, fields]) => {
    const layout = expectMap(fields, "an object").get("layout"), partTypes = new Map();
    const parts = [...expectMap(fields.get("parts"), "the parts")].map(([part, about]) => {
      const blob = about.get("blob"), type = about.get("type"), dtype = ZTENSOR_DTYPES[about.get("dtype")] ?? about.get("dtype");
      partTypes.set(part, type === undefined ? dtype : /^complex/.test(type) ? type : ZTENSOR_DTYPES[type] ?? `${type} over ${about.get("dtype")}`);
      if (!Array.isArray(blob)) throw new Error(`a part of '${show(name, 80)}' has no blob`);
      const here = about.get("shard") === undefined, from = size(blob[0], "an offset"), stored = size(blob[1], "a length");
      return { begin: from, end: from + stored, nbytes: size(about.get("decoded_length") ?? stored, "a length"), encoding: about.get("encoding"), checksum: about.get("digest"), here };
    });
    const whole = { name, shape: shapeOf(fields.get("shape"), name), layout: layout === "zt.dense/1" ? "dense" : layout, attributes: fields.get("attributes"), parts };
    return { ...whole, dtype: wholeType({ ...whole, partTypes }) };
  });
  return columns(file, "ztensor@2", tensors, root.get("attributes") ?? null, { headerNbytes: length + 40, first: 4096, last: file.size - 40 });
}
