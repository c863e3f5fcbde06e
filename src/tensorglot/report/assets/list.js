// The list of tensors: only the rows in sight are in the document, however many there are.

const ROW_HEIGHT = 30, ROWS_BEYOND = 8, ROWS_OF_A_SCREEN = 16;

class TensorList {
  constructor(index, onPick) {
    Object.assign(this, { index, onPick, rows: [], current: -1, open: new Map(), order: "tree", text: "" });
    this.box = byId("list");
    this.inner = byId("rows");
    this.box.classList.toggle("plain", !index.page.sparks);
    this.box.onscroll = () => this.draw();
    this.box.onkeydown = (event) => this.key(event);
    this.resized?.disconnect();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.box);
    this.refresh();
  }

  /** Computes the rows anew: after a search, in another order, or when a branch opens.
   *  As many levels of the tree are open as fit a screen; of what was found, all. */
  refresh({ keep = null } = {}) {
    const { index } = this;
    const chosen = this.text ? search(index, this.text) : index.names.map((_, i) => i);
    this.chosen = chosen;
    if (this.order === "tree") {
      const tree = makeTree(index, chosen);
      const levels = this.text && chosen.length <= 2000 ? Infinity : levelsThatFit(tree, ROWS_OF_A_SCREEN);
      this.rows = flatten(tree, (node, depth) => this.open.get(node.path) ?? depth < levels);
    } else {
      const { sort } = ORDERS[this.order];
      this.rows = (sort ? [...chosen].sort(sort(index)) : chosen).map((tensor) => ({ tensor, label: index.names[tensor], depth: 0 }));
    }
    byId("found").textContent = this.text ? `${count(chosen.length)} of ${count(index.length)}` : plural(index.length, "tensor");
    byId("none").textContent = this.text ? `No tensor matches “${show(this.text, 60)}”. Esc clears the search.` : "No tensors.";
    this.current = keep === null ? -1 : this.rows.findIndex(keep);
    this.inner.style.height = `${this.rows.length * ROW_HEIGHT}px`;
    this.box.style.setProperty("--rows", Math.max(3, this.rows.length));
    this.draw(true);
  }

  draw(anew = false) {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_HEIGHT) + ROWS_BEYOND);
    if (!anew && first === this.first && last === this.last) return;
    Object.assign(this, { first, last });
    const made = [];
    for (let i = first; i < last; i++) made.push(this.row(i));
    this.inner.replaceChildren(...made);
    byId("none").hidden = this.rows.length > 0;
  }

  row(i) {
    const row = this.rows[i], { index } = this;
    const made = el("div", { className: `row ${row.node ? "node" : "tensor"}`, role: "option", id: `row-${i}`, style: { top: `${i * ROW_HEIGHT}px` } });
    made.setAttribute("aria-selected", i === this.current);
    made.onclick = () => { this.box.focus({ preventScroll: true }); if (row.node) this.toggle(i); else this.go(i); };
    const label = el("bdi", {}, named((row.node && row.label.replace(/[./]+$/, "")) || row.label, 120));
    const name = el("span", { className: this.order === "tree" ? "" : "tail" }, label);
    const cell = el("div", { className: "name", style: { paddingLeft: `${Math.min(row.depth, 12) * 14}px` } });
    if (this.order === "tree") cell.append(el("span", { className: "fold" }, row.node ? (row.open ? "▾" : "▸") : ""));
    cell.append(name);
    const nbytes = row.node ? row.node.nbytes : index.nbytes(row.tensor);
    if (row.node) {
      if (!row.open) this.nodeBadges(cell, row.node);
      made.append(cell, el("div", { className: "spark" }), el("div", { className: "soft" }, ""), el("div", { className: "shape" }, plural(row.node.tensors, "tensor")));
    } else {
      this.badges(cell, row.tensor);
      const dtype = index.kind(row.tensor);
      made.title = show(index.names[row.tensor], 400);
      made.append(
        cell,
        el("div", { className: "spark" }, sparkline(index.spark(row.tensor), colourOf(dtype))),
        el("div", { className: "dtype" }, el("i", { className: "dot", style: { background: `var(${colourOf(dtype)})` } }), show(dtype, 24)),
        el("div", { className: "shape" }, index.shapeText(row.tensor)),
      );
    }
    const whole = row.node || this.order === "tree" ? index.one.names.length && this.total() : index.largest;
    made.append(el("div", { className: "size" }, bytes(nbytes), el("i", { style: { width: `${(100 * nbytes) / (whole || 1)}%` } })));
    return made;
  }

  total() {
    this.sum ??= this.index.names.reduce((sum, _, i) => sum + this.index.nbytes(i), 0);
    return this.sum;
  }

  badges(cell, tensor) {
    const change = this.index.change(tensor);
    if (change) cell.append(el("span", { className: `badge ${change[0].at(-1)}` }, change[1] === null ? change[0].join(" ") : percent(change[1])));
    if (this.index.odd.has(tensor)) cell.append(el("span", { className: "badge" }, "!"));
  }

  nodeBadges(cell, node) {
    if (node.changed) cell.append(el("span", { className: "badge values" }, `${count(node.changed)} changed`));
    if (node.odd) cell.append(el("span", { className: "badge" }, "!"));
  }

  toggle(i, open = !this.rows[i].open) {
    const { node } = this.rows[i];
    this.open.set(node.path, open);
    this.refresh({ keep: (row) => row.node?.path === node.path });
  }

  /** Selects a row and brings it into sight. */
  go(i) {
    if (i < 0 || i >= this.rows.length) return;
    this.current = i;
    const top = i * ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_HEIGHT > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW_HEIGHT - this.box.clientHeight;
    this.draw(true);
    this.box.setAttribute("aria-activedescendant", `row-${i}`);
    const { tensor } = this.rows[i];
    if (tensor !== undefined) this.onPick(tensor);
  }

  /** Selects a tensor, opening the branches that it is in. */
  reveal(tensor) {
    let i = this.rows.findIndex((row) => row.tensor === tensor);
    if (i < 0 && this.order === "tree") {
      let path = "";
      for (const piece of this.index.names[tensor].slice(0, 4096).split(/(?<=[./])(?=[^./])/).slice(0, DEEPEST)) this.open.set((path += piece), true);
      if (!this.chosen.includes(tensor)) { this.text = ""; byId("search").value = ""; }
      this.refresh();
      i = this.rows.findIndex((row) => row.tensor === tensor);
    }
    if (i >= 0) this.go(i); else this.onPick(tensor);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1);
    const row = this.rows[this.current];
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      this.go(Math.max(0, Math.min(this.rows.length - 1, this.current < 0 ? 0 : this.current + moves[event.key])));
    } else if (event.key === "ArrowRight" && row?.node) {
      if (row.open) this.go(this.current + 1); else this.toggle(this.current, true);
    } else if (event.key === "ArrowLeft" && row) {
      if (row.node && row.open) this.toggle(this.current, false);
      else this.go(this.rows.findLastIndex((other, i) => i < this.current && other.node && other.depth < row.depth));
    } else if ((event.key === "Enter" || event.key === " ") && row?.node) {
      this.toggle(this.current);
    } else {
      return;
    }
    event.preventDefault();
  }
}

/** A histogram in a few digits, as bars. */
function sparkline(digits, colour) {
  if (!digits) return null;
  const step = 60 / digits.length;
  const path = [...digits].map((digit, i) => {
    const height = Number(digit) * 2;
    return height ? `M${(i * step).toFixed(1)} 18v${-height}h${Math.max(1, step - 0.7).toFixed(1)}v${height}z` : "";
  }).join("");
  const drawn = svg("svg", { viewBox: "0 0 60 18", "aria-hidden": "true" }, svg("path", { d: path }));
  drawn.style.fill = `var(${colour})`;
  return drawn;
}
