// The page: numbers from its own elements, from the local server, or from a dropped file.

const root = document.documentElement;
const page = JSON.parse(byId("page").textContent);
let index = null, list = null, maps = [], shown = null;

// Light and dark

function setTheme(theme) {
  root.style.colorScheme = theme ?? "light dark";
  try { theme ? localStorage.setItem("tensorglot-theme", theme) : localStorage.removeItem("tensorglot-theme"); } catch { /* no storage for this page */ }
  redraw();
}
function redraw() {
  maps.forEach((map) => map.draw());
  if (shown !== null) openCard(shown);
}
const switchTheme = () => setTheme(isDark() ? "light" : "dark");
try { const kept = localStorage.getItem("tensorglot-theme"); if (kept) root.style.colorScheme = kept; } catch { /* no storage */ }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
byId("theme").onclick = switchTheme;

// Summary

const tile = (label, value, note, kind = "") => el("div", { className: `tile ${kind}` }, el("div", { className: "label" }, label), el("div", { className: "value" }, value), note ? el("div", { className: "note" }, note) : null);

function summary() {
  const { one } = index, use = new Map();
  for (let i = 0; i < one.names.length; i++) {
    const dtype = index.kind(i), row = use.get(dtype) ?? { tensors: 0, nbytes: 0 };
    row.tensors += 1;
    row.nbytes += index.nbytes(i);
    use.set(dtype, row);
  }
  const rows = [...use].sort((a, b) => b[1].nbytes - a[1].nbytes);
  const sum = (key) => rows.reduce((total, [, row]) => total + row[key], 0);
  const stored = one.stored.reduce((a, b) => a + b, 0), nbytes = sum("nbytes"), whole = sizeOf(one), elements = elementsOf(one);
  const pair = (first, second) => (index.two && first !== second ? [first, second].map((text) => text.replaceAll(" ", "\u00a0")).join(" → ") : first);
  const compressed = stored < nbytes ? `${bytes(nbytes)} of values in ${bytes(stored)}: ${(nbytes / stored).toFixed(2)}× compressed` : null;
  const made = [
    tile(isStore(one) ? "Size" : "File size", pair(bytes(whole), index.two && bytes(sizeOf(index.two))), index.two ? difference(sizeOf(index.two) - whole) : compressed ?? `${count(whole)} bytes`),
    tile("Tensors", pair(count(one.names.length), index.two && count(index.two.names.length)), `${one.files.length > 1 ? `in ${one.files.length} files; ` : ""}checksums: ${[...new Set([one, index.two ?? one].map(checksums))].join(" → ")}`),
    tile("Elements", pair(large(elements), index.two && large(elementsOf(index.two))), index.two && elementsOf(index.two) !== elements ? difference(elementsOf(index.two) - elements, "") : elements < 1e4 ? null : count(elements)),
  ];
  if (index.two) {
    for (const { children } of made) children[1].classList.toggle("pair", children[1].textContent.includes("→"));
    made.push(changeTile());
  }
  if (index.odd.size) made.push(tile("Worth a look", count(index.odd.size), el("span", {}, "tensors with NaN, Inf or a problem, marked !: ", el("button", { type: "button", className: "link", onclick: () => find("!") }, "show them"))));
  const mix = el("div", { className: "mix" }, ...rows.map(([dtype, row]) => el("i", { style: { flex: String(row.nbytes / (nbytes || 1)), background: `var(${colourOf(dtype)})` } })));
  const legend = el("div", { className: "legend" }, ...rows.slice(0, 12).map(([dtype, row]) => el("span", {}, el("i", { className: "dot", style: { background: `var(${colourOf(dtype)})` } }), el("b", {}, show(dtype, 40)), el("span", { className: "soft" }, `  ${percent(row.nbytes / (nbytes || 1))} · ${bytes(row.nbytes)} · ${plural(row.tensors, "tensor")}`))));
  if (index.two) made.push(...changedMetadata());
  else if (one.metadata && Object.keys(one.metadata).length) made.push(el("div", { className: "tile broad" }, el("div", { className: "label" }, "Metadata"), pairs(one.metadata, "mono cut")));
  if (rows.length) made.push(el("div", { className: index.two ? "tile broad" : "tile wide" }, el("div", { className: "label" }, index.two ? "Element types of the first file, by bytes" : "Element types, by bytes"), mix, legend));
  for (const note of one.notes ?? []) made.push(el("div", { className: "tile wide" }, el("div", { className: "label" }, "Note"), show(note, 1000)));
  byId("summary").replaceChildren(...made);
}

const isStore = ({ summary }) => summary.checked_by === "block";
const sizeOf = (file) => file.summary.file_nbytes ?? (file.files.reduce((total, { nbytes }) => total + nbytes, 0) || file.stored.reduce((a, b) => a + b, 0));
const elementsOf = ({ shapes }) => shapes.reduce((sum, shape) => sum + shape.reduce((a, b) => a * b, 1), 0);
const difference = (n, unit = " bytes") => (n === 0 ? "the same size" : `${n > 0 ? "+" : "−"}${count(Math.abs(n))}${unit}`);

function checksums(one) {
  if (isStore(one)) return "every block, its hash";
  if (checkedElsewhere(one)) return "those of the files";
  const found = new Map();
  one.checksum.codes.forEach((code) => { const kind = one.checksum.values[code]; found.set(kind, (found.get(kind) ?? 0) + 1); });
  return [...found].map(([kind, n]) => (kind === null ? `none${found.size > 1 ? ` for ${count(n)}` : ""}` : `${show(kind, 40)}${found.size > 1 ? ` for ${count(n)}` : ", every tensor"}`)).join(", ") || "none";
}

function changeTile() {
  const { changes } = page, kinds = new Map();
  for (const [names] of Object.values(page.changed).filter(Boolean)) for (const kind of names) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  const known = [...kinds].map(([kind, n]) => `${kind} ${count(n)}`).join(", ");
  const changed = Object.values(page.changed).filter((change) => change !== null).length, left = notCompared().length;
  if (left === 0) return tile("Changed tensors", count(changed), changed ? `${known}; ${count(changes.tensors - changed)} equal` : `all ${count(changes.tensors)} are equal`, "changes");
  const button = el("button", { type: "button", className: "link", disabled: comparing, onclick: compareAll }, comparing ? "comparing…" : "compare them");
  return tile("Changed tensors", `${count(changed)} so far`, el("span", {}, `${known ? `${known}; ` : ""}${count(left)} not compared yet: `, button), "changes");
}

// Two files in a viewer: a tensor is compared when its card is opened, or all of them one after the other

let comparing = false;
const notCompared = () => index.names.map((_, i) => i).filter((i) => !index.known(i));

function showChanges() {
  byId("summary").querySelector(".changes").replaceWith(changeTile());
  maps.forEach((map) => { map.explain(); map.draw(); });
  list.draw(true);
}

async function compareAll() {
  comparing = true;
  showChanges();
  let drawn = performance.now();
  for (const i of notCompared()) {
    const { changed, error } = await (await fetch(`change/${i}`)).json();
    page.changed[i] = error ? [["unreadable"], null] : changed;
    if (performance.now() - drawn > 300) { showChanges(); drawn = performance.now(); }
  }
  comparing = false;
  list.refresh({ keep: (row) => row.tensor === shown });
  showChanges();
}

function changedMetadata() {
  const { metadata } = page.changes;
  if (!metadata.length) return [];
  const text = (value) => (value === null ? "–" : show(typeof value === "string" ? value : JSON.stringify(value), 60));
  const moved = Object.fromEntries(metadata.map(({ key, old, new: now }) => [key, `${text(old)} → ${text(now)}`]));
  return [el("div", { className: "tile broad" }, el("div", { className: "label" }, "Changed metadata"), pairs(moved, "mono cut"))];
}

/** Searches, as if the text had been typed. */
function find(text) {
  byId("search").value = text;
  byId("search").oninput();
  list.go(list.rows.findIndex((row) => row.tensor !== undefined));
}

// Cards

async function fetchCard(i) {
  if (page.mode === "report") {
    const together = JSON.parse(byId(`cards-${Math.floor(i / page.together)}`).textContent);
    return together[i % page.together];
  }
  if (page.mode === "view") {
    const answer = await fetch(`card/${i}`);
    return answer.ok ? answer.json() : { error: `The viewer answered ${answer.status}: is it still running?` };
  }
  return null;
}

async function openCard(i) {
  shown = i;
  const head = cardHead(index, i), place = byId("card");
  place.replaceChildren(head, ...(page.mode === "view" ? [el("div", { className: "panel waiting" }, "Reading…")] : []));
  let body;
  try {
    const card = await fetchCard(i);
    if (card && !card.error && !index.known(i)) { page.changed[i] = card.changed; showChanges(); }
    body = card ? cardBody(index, i, card) : headerOnly(i);
  } catch (error) {
    body = [el("div", { className: "panel wrong" }, page.mode === "view" ? `${error.message}. Is the viewer still running?` : error.message)];
  }
  if (shown === i) place.replaceChildren(head, ...body);
}

function headerOnly(i) {
  const attributes = index.one.attributes?.[i];
  const note = el("p", { className: "soft" }, "The browser read the header only. For statistics and heat maps: ", el("code", {}, `tensorglot view ${show(index.one.path, 80)}`));
  const made = [el("div", { className: "panel" }, note)];
  if (attributes && Object.keys(attributes).length) made.push(panel("Attributes", pairs(attributes)));
  return made;
}

function pick(i) {
  if (i === shown) return;
  openCard(i);
  maps.forEach((map) => map.select(i));
}

// Everything of one file, or of two

function start() {
  index = makeIndex(page);
  shown = null;
  globalThis.tensorglot = { index: page.one };
  const title = index.two ? `${baseName(index.one.path)} → ${baseName(index.two.path)}` : baseName(index.one.path);
  byId("title").textContent = title;
  byId("title").title = show(index.two ? `${index.one.path} → ${index.two.path}` : index.one.path, 400);
  document.title = `${title} · tensorglot`;
  byId("format").textContent = index.two && index.two.summary.format !== index.one.summary.format ? `${index.one.summary.format} → ${index.two.summary.format}` : index.one.summary.format;
  byId("format").title = index.one.summary.note ?? "";
  byId("drop").hidden = true;
  byId("main").hidden = false;
  byId("error").hidden = true;
  summary();
  const reveal = (tensor) => list.reveal(tensor);
  maps = [new FileMap(index, index.one, (i) => i, { title: index.two ? `Map of ${baseName(index.one.path)}` : index.one.files.length > 1 ? "Map of the files" : "Map of the file", onPick: reveal })];
  if (index.two) maps.push(new FileMap(index, index.two, (i) => index.fromTwo[i], { title: `Map of ${baseName(index.two.path)}`, onPick: reveal }));
  byId("maps").replaceChildren(...maps.map((map) => map.element));
  for (const id of ["maps", "panes", "list"]) byId(id).classList.toggle("two", Boolean(index.two));
  const order = byId("order"), names = Object.keys(ORDERS).filter((key) => key !== "change" || index.two);
  order.replaceChildren(...names.map((key) => el("option", { value: key }, ORDERS[key].label)));
  list = new TensorList(index, pick);
  order.onchange = () => { list.order = order.value; list.refresh({ keep: (row) => row.tensor === shown }); };
  if (index.two) { order.value = "change"; list.order = "change"; list.refresh(); }
  byId("search").value = "";
  byId("search").oninput = () => { list.text = byId("search").value.trim(); list.box.scrollTop = 0; list.refresh({ keep: (row) => row.tensor !== undefined && row.tensor === shown }); };
  byId("card").replaceChildren(el("div", { className: "panel waiting" }, index.length ? "Choose a tensor from the list or the map." : "No tensors."));
  const first = index.two ? Math.max(0, list.rows.findIndex((row) => index.change(row.tensor)?.[1] > 0)) : largest();
  if (page.mode !== "view" && first >= 0 && index.length) index.two ? list.go(first) : list.reveal(first);
  list.box.scrollTop = 0;
}

const largest = () => { for (let i = 0; i < index.length; i++) if (index.nbytes(i) === index.largest) return i; return -1; };
const baseName = (path) => show(path.split("/").at(-1) || path, 80);

// Dropped files: the first one is shown, and a list of all

function openFiles(files) {
  const chooser = byId("files");
  chooser.hidden = files.length < 2;
  chooser.replaceChildren(...files.map((file, i) => el("option", { value: String(i) }, `${i + 1} of ${files.length}: ${show(file.name, 60)}`)));
  chooser.onchange = () => openFile(files[Number(chooser.value)]);
  if (files.length) openFile(files[0]);
}

async function openFile(file) {
  try {
    page.one = await readFile(file);
    start();
  } catch (error) {
    byId("error").textContent = `${show(file.name, 200)}: ${error.message}`;
    byId("error").hidden = false;
  }
}

function acceptDrops() {
  byId("open").hidden = false;
  byId("drop").hidden = false;
  byId("open").onclick = () => byId("file").click();
  byId("file").onchange = () => {
    const files = [...byId("file").files];
    byId("file").value = "";  // the same file may be chosen again, after it was written anew
    openFiles(files);
  };
  byId("drop").onclick = () => byId("file").click();
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("over");
    openFiles([...event.dataTransfer.files]);
  });
}

// Keyboard

addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select");
  if (event.key === "Escape" && event.target === byId("search")) {
    byId("search").value = "";
    byId("search").oninput();
    byId("list").focus();
  }
  if (event.key === "ArrowDown" && event.target === byId("search")) { byId("list").focus(); list?.go(Math.max(0, list.current)); event.preventDefault(); }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { byId("search").focus(); event.preventDefault(); }
  if (event.key === "t") switchTheme();
  if (event.key === "?") byId("keys").showModal();
});
byId("help").onclick = () => byId("keys").showModal();

if (page.mode === "open") acceptDrops(); else start();
