// The tensors of one file, or of two, as columns; and the tree of their names.

const KINDS = ["float32", "bfloat16", "float16", "float64", "float8", "uint", "int", "bool", "complex"];
const DEEPEST = 24;

/** The colour of an element type: a variable of the style sheet. */
function colourOf(dtype) {
  const kind = KINDS.find((name) => dtype.startsWith(name)) ?? (/^float[46]/.test(dtype) ? "float8" : "nested");
  return `--${kind}`;
}

/** Resolved for a canvas, which knows no variables. */
function resolve(name) {
  const probe = el("i", { style: { color: `var(${name})`, display: "none" } });
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Rows for all names: those of the first file, then those that only the second has. */
function makeIndex(page) {
  const { one, two } = page;
  const places = two ? new Map(one.names.map((name, i) => [name, i])) : null;
  const extra = [];
  const fromTwo = two ? two.names.map((name, i) => places.get(name) ?? one.names.length + extra.push(i) - 1) : [];
  const names = two ? [...one.names, ...extra.map((i) => two.names[i])] : one.names;
  const at = (i) => (i < one.names.length ? [one, i] : [two, extra[i - one.names.length]]);
  const column = (key) => (i) => { const [file, j] = at(i); return file[key][j]; };
  const table = (key) => (i) => { const [file, j] = at(i); return file[key].values[file[key].codes[j]]; };
  const index = {
    page, one, two, names, fromTwo,
    length: names.length,
    shape: column("shapes"), nbytes: column("nbytes"), stored: column("stored"), offset: column("offsets"),
    dtype: table("dtype"), encoding: table("encoding"), layout: table("layout"), checksum: table("checksum"),
    kind: (i) => (index.layout(i).startsWith("gguf.") ? index.layout(i).slice(5) : index.dtype(i)),
    shapeText: (i) => (index.layout(i) === "nested" && !index.shape(i).length ? "nested" : shapeText(index.shape(i))),
    elements: (i) => index.shape(i).reduce((a, b) => a * b, 1),
    change: (i) => page.changed?.[i] ?? null,
    /** Whether it was compared; a viewer compares a tensor when its card is opened. */
    known: (i) => page.mode !== "view" || !two || i in page.changed,
    spark: (i) => page.sparks?.[i] ?? null,
    odd: new Set(page.odd ?? []),
  };
  index.largest = names.reduce((most, _, i) => Math.max(most, index.nbytes(i)), 1);
  return index;
}

const makeNode = (label, path) => ({ label, path, children: new Map(), tensors: 0, nbytes: 0, changed: 0, odd: 0 });

/** Nodes by the dots and slashes of names, with totals. A chain of single branches is one node. */
function makeTree(index, chosen) {
  const root = makeNode("", "");
  for (const i of chosen) {
    const pieces = index.names[i].slice(0, 4096).split(/(?<=[./])(?=[^./])/);
    if (pieces.length > DEEPEST) pieces.push(pieces.splice(DEEPEST).join(""));
    let node = root;
    const nbytes = index.nbytes(i), changed = Number(index.change(i) !== null), odd = Number(index.odd.has(i));
    for (let depth = 0; ; depth++) {
      node.tensors += 1;
      node.nbytes += nbytes;
      node.changed += changed;
      node.odd += odd;
      if (depth === pieces.length - 1) break;
      const piece = pieces[depth];
      let next = node.children.get(piece);
      if (!next) {
        next = makeNode(piece, node.path + piece);
        node.children.set(piece, next);
      }
      node = next;
    }
    node.children.set(i, { label: pieces.at(-1) + (index.names[i].length > 4096 ? "…" : ""), tensor: i });
  }
  return root;
}

/** Children in the order of the file; by number where all have one: 2 before 10. */
function inOrder(children) {
  const made = [...children.values()];
  return made.every(({ label }) => /^\d/.test(label)) ? made.sort((a, b) => parseInt(a.label) - parseInt(b.label)) : made;
}

/** The children of a node, where a chain of single branches is one: model. → model.layers. */
function branches(node) {
  return inOrder(node.children).map((child) => {
    let { label } = child;
    while (child.children?.size === 1) {
      child = child.children.values().next().value;
      label += child.label;
    }
    return { child, label };
  });
}

/** The visible rows of a tree. */
function flatten(root, isOpen) {
  const rows = [];
  const walk = (node, depth) => {
    for (const { child, label } of branches(node)) {
      if (child.tensor !== undefined) {
        rows.push({ tensor: child.tensor, label, depth });
      } else {
        const open = isOpen(child, depth);
        rows.push({ node: child, label, depth, open });
        if (open) walk(child, depth + 1);
      }
    }
  };
  walk(root, 0);
  return rows;
}

/** How many levels of branches can be open so that at most so many rows are visible. */
function levelsThatFit(root, most) {
  let level = branches(root), rows = level.length;
  for (let levels = 0; ; levels++) {
    level = level.flatMap(({ child }) => (child.children ? branches(child) : []));
    rows += level.length;
    if (!level.length || rows > most) return levels;
  }
}

const NATURAL = new Intl.Collator("en", { numeric: true });
const ORDERS = {
  tree: { label: "Tree" },
  file: { label: "File order", sort: null },
  size: { label: "Largest first", sort: (index) => (a, b) => index.nbytes(b) - index.nbytes(a) },
  name: { label: "By name", sort: (index) => (a, b) => NATURAL.compare(index.names[a].slice(0, 500), index.names[b].slice(0, 500)) },
  type: { label: "By type", sort: (index) => (a, b) => index.dtype(a).localeCompare(index.dtype(b)) || index.nbytes(b) - index.nbytes(a) },
  change: { label: "Changed first", sort: (index) => (a, b) => changeRank(index, b) - changeRank(index, a) },
};

const changeRank = (index, i) => { const change = index.change(i); return change === null ? -1 : change[1] ?? 2; };

/** Positions of the tensors that contain every word, in their name, type or shape; `!` finds those that deserve a look. */
function search(index, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (let i = 0; i < index.length; i++) {
    const about = `${index.names[i]} ${index.dtype(i)} ${index.kind(i)} ${index.shape(i).join("x")}${index.odd.has(i) ? " !" : ""}`.toLowerCase();
    if (words.every((word) => about.includes(word))) found.push(i);
  }
  return found;
}
