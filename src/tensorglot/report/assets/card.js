// The card of one tensor: its facts, the distribution of its values, a heat map, and what changed.

const fact = (label, value) => (value === null || value === undefined || value === "" ? null : el("span", {}, el("span", { className: "soft" }, `${label} `), el("b", {}, value)));

/** Whether checksums are not those of tensors, but of the blocks of a store or the boxes of a distributed checkpoint. */
const checkedElsewhere = ({ summary }) => summary.checked_by === "block" || summary.checked_by === "box";

function cardHead(index, i) {
  const name = index.names[i], dtype = index.kind(i), nested = index.shapeText(i) === "nested", offset = index.offset(i), stored = index.stored(i), nbytes = index.nbytes(i);
  const facts = el("div", { className: "facts" },
    el("span", { className: "type" }, el("i", { className: "dot", style: { background: `var(${colourOf(dtype)})` } }), el("b", {}, show(dtype, 200))),
    nested ? null : el("b", { className: "shape" }, index.shapeText(i)),
    nested ? null : fact("elements", count(index.elements(i))),
    fact("size", bytes(nbytes)),
    stored === nbytes ? null : fact("stored", bytes(stored) + (stored < nbytes ? ` (${(nbytes / stored).toFixed(2)}×)` : "")),
    offset === null ? null : fact("at byte", count(offset)),
    ["raw", "joined"].includes(index.encoding(i)) ? null : fact("encoding", show(index.encoding(i))),
    index.layout(i) === "dense" ? null : fact("layout", show(index.layout(i))),
    index.checksum(i) === null && checkedElsewhere(index.one) ? null : fact("checksum", index.checksum(i) === null ? "none" : show(index.checksum(i))),
    index.two ? el("span", { className: "soft" }, i < index.one.names.length ? "in the first file" : "in the second file") : null,
  );
  return el("div", { className: "panel" }, el("h2", { className: "name" }, named(name, 4000)), facts);
}

function cardBody(index, i, card) {
  if (card.error) return [el("div", { className: "panel wrong" }, card.error)];
  const after = new Map((card.after?.parts ?? []).map((part) => [part.name, part]));
  const made = [];
  for (const change of card.changes ?? []) made.push(changePanel(index, i, change));
  for (const part of card.parts) made.push(...partPanels(card, part, after.get(part.name)));
  for (const part of after.values()) if (!card.parts.some((other) => other.name === part.name)) made.push(...partPanels(card.after, part));
  if (Object.keys(card.attributes ?? {}).length) {
    made.push(el("div", { className: "panel" }, el("div", { className: "head" }, el("h2", {}, "Attributes")), pairs(card.attributes)));
  }
  return made;
}

function pairs(values, className = "mono") {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const cells = Object.entries(values).slice(0, 200).flatMap(([key, value]) => [
    el("span", {}, show(key, 200)), el("span", { className, title: show(text(value), 2000) }, show(text(value), 2000)),
  ]);
  return el("div", { className: "pairs" }, ...cells);
}

/** Buttons of which one is pressed; `draw` gets its key. */
function choices(options, first, draw) {
  const buttons = options.map(([key, label]) => {
    const button = el("button", { type: "button", onclick: () => pick(key) }, label);
    return [key, button];
  });
  const pick = (key) => {
    for (const [other, button] of buttons) button.setAttribute("aria-pressed", other === key);
    draw(key);
  };
  pick(first);
  return el("span", { className: "buttons" }, ...buttons.map(([, button]) => button));
}

function panel(title, ...children) {
  return el("div", { className: "panel" }, el("div", { className: "head" }, el("h2", {}, title)), ...children.filter((child) => child !== null));
}

function partPanels(card, part, after) {
  const several = card.parts.length > 1;
  const label = several ? `${show(part.name, 60)} · ` : "";
  const wrong = [part, after].find((side) => side?.problem ?? side?.unsupported);
  if (wrong) return [panel(`${label}Values`, el("p", { className: "wrong" }, show(wrong.problem ?? wrong.unsupported, 1000)))];
  if (!part.count) return [panel(`${label}Values`, el("p", { className: "soft" }, "No elements."))];
  const made = [];
  const about = several ? el("div", { className: "facts" }, el("b", {}, part.dtype), el("b", {}, shapeText(part.shape)), fact("size", bytes(part.nbytes))) : null;
  if (part.histogram) {
    const place = el("div", {});
    const buttons = choices([["linear", "linear"], ["log", "log"]], "linear", (key) => place.replaceChildren(histogramChart([part, after], key === "log")));
    const head = el("div", { className: "head" }, el("h2", {}, `${label}Distribution`), el("span", { className: "grow" }), buttons);
    const dot = (colour, text) => el("span", { className: "soft" }, el("i", { className: "dot", style: { background: `var(${colour})` } }), text);
    const legend = after?.histogram ? el("div", { className: "legend" }, dot(colourOf(part.dtype), "first file"), dot("--changed", "second file")) : null;
    made.push(el("div", { className: "panel" }, head, legend, about, place, ...statistics(part, after)));
  } else {
    made.push(panel(`${label}Values`, about, ...statistics(part, after)));
  }
  if (part.grid) made.push(heatPanel(`${label}Heat map`, after?.grid ? after : part, Boolean(after?.grid)));
  return made;
}

function statistics(part, after) {
  const percentOf = (n, side) => `${count(n)}${n ? ` (${percent(n / side.count)})` : ""}`;
  const fields = [
    ["mean", "mean"], ["deviation", "std"], ["minimum", "min"], ["maximum", "max"], ["L2 norm", "norm"], ["L1 norm", "norm1"],
  ].filter(([, key]) => !part.dtype.startsWith("complex") || !["min", "max"].includes(key)).map(([label, key]) => [label, (side) => number(side[key], ["mean", "min", "max"].includes(key) ? digitsBetween(side.min, side.max, 5) : 5)]);
  fields.push(["zeros", (side) => percentOf(side.zeros, side)], ["NaN", (side) => percentOf(side.nan, side)], ["Inf", (side) => percentOf(side.inf, side)]);
  return [table(fields, part, after), part.quantiles?.length ? table(quantileFields(), part, after, part.exact ? "" : "approximate") : null];
}

function quantileFields() {
  const quantile = { "1%": 1, "5%": 2, "25%": 3, median: 4, "75%": 5, "95%": 6, "99%": 7 };
  return Object.entries(quantile).map(([label, at]) => [label, (side) => (side.exact ? "" : "≈\u00a0") + number(side.quantiles?.[at], digitsBetween(side.min, side.max, side.exact ? 4 : 3))]);
}

function table(fields, part, after, kind = "") {
  const made = el("div", { className: `stats ${after ? "two" : ""} ${kind}` });
  for (const [label, text] of fields) {
    const was = text(part), now = after ? text(after) : was;
    const bad = (label === "NaN" || label === "Inf") && !/^0$/.test(now);
    made.append(el("div", { "data-stat": label }, el("div", { className: "label" }, label), el("div", { className: bad ? "value bad" : "value" }, now),
      was === now ? null : el("div", { className: "was" }, `was ${was}`)));
  }
  return made;
}

function heatPanel(title, part, isAfter) {
  const { grid } = part, place = el("div", {}), caption = el("p", { className: "caption" });
  const planes = { mean: decodePlane(grid.mean), min: grid.min && decodePlane(grid.min), max: grid.max && decodePlane(grid.max) };
  const other = grid.other && decodePlane(grid.other), digits = digitsBetween(part.min, part.max, 4);
  const single = grid.rows === grid.cellRows && grid.columns === grid.cellColumns;
  const tell = (at) => {
    const odd = other?.[at] ? `${count(other[at])} NaN or infinite` : "";
    if (Number.isNaN(planes.mean[at])) return odd || "no value";
    const [mean, low, high] = ["mean", "min", "max"].map((key) => planes[key] && number(planes[key][at], digits));
    const values = single ? mean : `mean ${mean}, min ${low}, max ${high}`;
    return odd ? `${values}\n${odd}` : values;
  };
  const draw = (key) => {
    place.replaceChildren(heatMap(grid, key, { tell }));
    const words = { mean: "mean", min: "minimum", max: "maximum" };
    const magnitude = part.dtype.startsWith("complex") ? " Of magnitudes." : "";
    caption.textContent = gridCaption(grid, part.shape, words[key]) + magnitude + (grid.other ? " Cells without a finite value are magenta." : "") + (isAfter ? " Of the second file." : "");
  };
  const head = el("div", { className: "head" }, el("h2", {}, title), el("span", { className: "grow" }));
  if (single) draw("mean"); else head.append(choices([["mean", "mean"], ["min", "min"], ["max", "max"]], "mean", draw));
  return el("div", { className: "panel heatmap" }, head, place, caption);
}

function changePanel(index, i, change) {
  const title = change.key ? `Changed · ${show(change.key, 60)}` : "Changed";
  const made = panel(title, el("p", { className: "change" }, show(change.text, 2000)));
  const { where } = change;
  if (where) {
    const place = el("div", {}), caption = el("p", { className: "caption" });
    const share = decodePlane(where.share), distance = decodePlane(where.distance);
    const tell = (at) => (share[at] ? `${percent(share[at])} changed, by at most ${number(distance[at], 4)}` : "unchanged");
    const draw = (key) => {
      place.replaceChildren(heatMap(where, key, { kind: "change", tell }));
      caption.textContent = gridCaption(where, index.shape(i), key === "share" ? "share of changed elements" : "largest difference");
    };
    made.querySelector(".head").append(el("span", { className: "grow" }), choices([["share", "how many"], ["distance", "how much"]], "share", draw));
    made.append(place, caption);
  }
  return made;
}
