// The map of a file: every byte in order, line after line, coloured by element type or by change.

const MAP_LINES = 10, LINES_OF_TWO = 4, LINE_HEIGHT = 15, LINE_GAP = 2;

/** Spans in the order of their bytes, files one after the other; by order and size where a tensor has no place. */
function layOut(file, owner) {
  const [begins, ends, tensors, files] = file.spans ?? [[], [], [], []];
  if (!begins.length) {
    let end = 0;
    const spans = file.names.map((_, i) => ({ begin: end, end: (end += file.stored[i]), tensor: owner(i) }));
    return { spans, total: end, placed: false };
  }
  const starts = [];
  let total = 0;
  for (const part of file.files) { starts.push(total); total += part.nbytes; }
  const spans = begins.map((begin, i) => ({ begin: begin + starts[files[i]], end: ends[i] + starts[files[i]], tensor: owner(tensors[i]) }));
  spans.sort((a, b) => a.begin - b.begin || a.end - b.end);
  return { spans, total, placed: true };
}

class FileMap {
  constructor(index, file, owner, { title, onPick }) {
    Object.assign(this, { index, file, ...layOut(file, owner), byChange: Boolean(index.two), lines: index.two ? LINES_OF_TWO : MAP_LINES, selected: null });
    this.canvas = el("canvas", { tabIndex: -1, role: "img" });
    this.legend = el("div", { className: "legend" });
    const head = el("div", { className: "head" }, el("h2", {}, title));
    if (index.two) head.append(el("span", { className: "grow" }), this.switcher());
    else head.append(el("span", { className: "soft" }, this.describe()));
    head.title = this.describe();
    this.element = el("div", { className: "panel" }, head, this.canvas, this.legend);
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", hideTip);
    this.canvas.addEventListener("click", (event) => { const span = this.at(event); if (span?.tensor !== undefined) onPick(span.tensor); });
    this.explain();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  describe() {
    if (!this.placed) return "tensors in order, by size";
    const used = this.spans.reduce((sum, span) => sum + span.end - span.begin, 0);
    const other = this.total - used;
    const files = this.file.files.length > 1 ? `${plural(this.file.files.length, "file")}, ` : "";
    return `${files}byte 0 to ${count(this.total)}; header and padding ${bytes(Math.max(0, other))}`;
  }

  switcher() {
    const buttons = [["by type", false], ["by change", true]].map(([label, byChange]) => {
      const button = el("button", { type: "button", onclick: () => { this.byChange = byChange; mark(); this.explain(); this.draw(); } }, label);
      return [button, byChange];
    });
    const mark = () => buttons.forEach(([button, byChange]) => button.setAttribute("aria-pressed", byChange === this.byChange));
    mark();
    return el("span", { className: "buttons" }, ...buttons.map(([button]) => button));
  }

  /** What the colours of changes mean; those of types are in the summary. */
  explain() {
    const found = this.byChange ? this.spans.map(({ tensor }) => (this.index.known(tensor) ? this.index.change(tensor) : undefined)) : [];
    const known = [
      ["--empty", 1, "not compared yet", (change) => change === undefined],
      ["--equal", 1, "equal", (change) => change === null],
      ["--changed", 0.7, "changed: the stronger, the more elements", (change) => change && change[1] !== null],
      ["--reshaped", 1, "another shape or type", (change) => change && change[1] === null && !/added|removed/.test(change[0])],
      ["--bad", 1, "only in the first file", (change) => change?.[0].includes("removed")],
      ["--good", 1, "only in the second file", (change) => change?.[0].includes("added")],
    ].filter(([, , , test]) => found.some(test));
    this.legend.replaceChildren(...known.map(([colour, opacity, text]) => el("span", { className: "soft" }, el("i", { className: "dot", style: { background: `var(${colour})`, opacity: String(opacity) } }), text)));
  }

  colours() {
    const names = new Map();
    const get = (name) => { if (!names.has(name)) names.set(name, resolve(name)); return names.get(name); };
    return (tensor) => {
      if (!this.byChange) return [get(colourOf(this.index.kind(tensor))), 1];
      const change = this.index.change(tensor);
      if (!this.index.known(tensor)) return [get("--empty"), 1];
      if (change === null) return [get("--equal"), 1];
      if (change[0].includes("added")) return [get("--good"), 1];
      if (change[0].includes("removed")) return [get("--bad"), 1];
      return change[1] === null ? [get("--reshaped"), 1] : [get("--changed"), 0.35 + 0.65 * Math.sqrt(change[1])];
    };
  }

  isChanged(tensor) { return this.byChange && Boolean(this.index.change(tensor)); }

  /** What changed is painted last, so that one small tensor among thousands of equal ones is seen. */
  inPaintingOrder() {
    if (!this.byChange) return this.spans;
    return [...this.spans.filter(({ tensor }) => !this.isChanged(tensor)), ...this.spans.filter(({ tensor }) => this.isChanged(tensor))];
  }

  draw() {
    const width = this.canvas.clientWidth, scale = devicePixelRatio || 1;
    if (!width || !this.total) { this.canvas.style.height = "0"; return; }
    const { lines } = this, height = lines * (LINE_HEIGHT + LINE_GAP) - LINE_GAP;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    const perLine = this.total / lines;
    this.width = width;
    this.perLine = perLine;
    const colour = this.colours(), gap = resolve("--panel");
    context.fillStyle = resolve("--empty");
    for (let line = 0; line < lines; line++) context.fillRect(0, line * (LINE_HEIGHT + LINE_GAP), width, LINE_HEIGHT);
    const strip = (begin, end, paint) => {  // whole pixels: edges of thousands of spans would blend with the ground
      for (let line = Math.min(lines - 1, Math.floor(begin / perLine)); line < lines && line * perLine < end; line++) {
        const from = Math.round(Math.max(0, (begin - line * perLine) / perLine) * width);
        const to = Math.round(Math.min(1, (end - line * perLine) / perLine) * width);
        paint(from, line * (LINE_HEIGHT + LINE_GAP), to - from);
      }
    };
    let before = null, even = false;
    for (const { begin, end, tensor } of this.inPaintingOrder()) {
      let [fill, opacity] = colour(tensor);
      even = before === fill && !even;  // neighbours of one type are told apart
      before = fill;
      if (even && !this.byChange) opacity *= 0.78;
      strip(begin, end, (x, y, w) => {
        context.globalAlpha = opacity;
        context.fillStyle = fill;
        context.fillRect(x, y, Math.max(w, this.isChanged(tensor) ? 2 : 1), LINE_HEIGHT);
        context.globalAlpha = 1;
        if (w > 3) { context.fillStyle = gap; context.fillRect(x + w - 0.75, y, 0.75, LINE_HEIGHT); }
      });
    }
    if (this.selected !== null) {
      context.strokeStyle = resolve("--ink");
      context.lineWidth = 2;
      for (const { begin, end, tensor } of this.spans) {
        if (tensor === this.selected) strip(begin, end, (x, y, w) => (w < 6 ? context.strokeRect(x - 1, y + 1, Math.max(w, 2) + 2, LINE_HEIGHT - 2) : context.strokeRect(x + 1, y + 1, w - 2, LINE_HEIGHT - 2)));
      }
    }
    this.canvas.setAttribute("aria-label", `${plural(this.spans.length, "span")} of ${bytes(this.total)}`);
  }

  byteAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const line = Math.max(0, Math.min(this.lines - 1, Math.floor((event.clientY - box.top) / (LINE_HEIGHT + LINE_GAP))));
    return (line + (event.clientX - box.left) / this.width) * this.perLine;
  }

  at(event) {
    const place = this.byteAt(event), slack = this.perLine / this.width;
    let low = 0, high = this.spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle].begin <= place) low = middle + 1; else high = middle;
    }
    const span = this.spans[low - 1];
    if (span && place < Math.max(span.end, span.begin + slack)) return span;
    return { begin: span ? span.end : 0, end: this.spans[low]?.begin ?? this.total };
  }

  hover(event) {
    const { begin, end, tensor } = this.at(event);
    const where = this.placed ? `\nbytes ${count(begin)} to ${count(end)}` : "";
    if (tensor === undefined) return showTip(event, `header or padding, ${bytes(end - begin)}${where}`);
    const { index } = this, change = index.change(tensor);
    const changed = change ? `\n${change[0].join(", ")}${change[1] === null ? "" : `: ${percent(change[1])} of the elements`}` : "";
    showTip(event, `${named(index.names[tensor])}\n${index.kind(tensor)}  ${index.shapeText(tensor)}  ${bytes(end - begin)}${where}${changed}`);
  }

  select(tensor) { this.selected = tensor; this.draw(); }
}
