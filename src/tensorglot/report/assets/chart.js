// Charts of a card: a histogram with quantiles, and heat maps.

const WIDTH = 560, HEIGHT = 150, AXIS = 34;

/** Where a value is from `low` (0) to `high` (1). Their difference may overflow, or be a few of the smallest numbers. */
function position(value, low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return low === high ? 0.5 : (value / size - low / size) / (high / size - low / size);
}

/** Bars on a common axis; of two histograms the first is an outline. Heights are shares for each unit of the axis. */
function histogramChart(series, logarithmic) {
  const known = series.filter((part) => part?.histogram);
  if (!known.length) return null;
  const low = Math.min(...known.map((part) => part.histogram.low)), high = Math.max(...known.map((part) => part.histogram.high));
  const x = (value) => position(value, low, high) * WIDTH;
  const bars = known.map(({ histogram, dtype }) => {
    const { counts } = histogram, sum = counts.reduce((a, b) => a + b, 0), bins = counts.length;
    const begin = x(histogram.low), end = x(histogram.high);
    const width = bins === 1 ? WIDTH / 30 : (end - begin) / bins;  // one value: a thin bar
    const start = bins === 1 ? (begin + end - width) / 2 : begin;
    const edge = (i) => histogram.low * (1 - i / bins) + histogram.high * (i / bins);
    const whole = bins === 1 || (/^(u?int|bool)/.test(dtype) && histogram.high - histogram.low === bins);
    const digits = digitsBetween(histogram.low, histogram.high, 5);
    const text = (i) => (whole ? number(edge(i + 0.5)) : `${number(edge(i), digits)} to ${number(edge(i + 1), digits)}`);
    return counts.map((n, i) => ({ left: start + i * width, width, text: () => text(i), n, density: n / sum / width }));
  });
  const every = bars.flat().filter((bar) => bar.n > 0);
  const most = Math.max(...every.map((bar) => bar.density)), least = Math.min(...every.map((bar) => bar.density));
  const y = (density) => {
    if (density === 0) return 0;
    if (!logarithmic || most === least) return (density / most) * (HEIGHT - 8);
    return ((Math.log(density) - Math.log(least)) / (Math.log(most) - Math.log(least))) * (HEIGHT - 20) + 12;
  };
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT + AXIS}`, role: "img" });
  bars.forEach((row, s) => {
    const outline = bars.length > 1 && s === 0;
    const colour = `var(${bars.length > 1 && s === 1 ? "--changed" : colourOf(known[s].dtype)})`;
    for (const bar of row) {
      if (!bar.n) continue;
      const width = Math.max(0.75, bar.width - 1), height = Math.max(1, y(bar.density));
      const rect = svg("rect", { x: bar.left, y: HEIGHT - height, width, height, rx: 1 });
      rect.style.fill = colour;
      if (outline) { rect.style.fillOpacity = "0.25"; rect.style.stroke = colour; rect.style.strokeWidth = "0.75"; }
      if (bars.length > 1 && s === 1) rect.style.fillOpacity = "0.55";
      rect.addEventListener("pointermove", (event) => showTip(event, `${bar.text()}\n${plural(bar.n, "element")}`));
      rect.addEventListener("pointerleave", hideTip);
      chart.append(rect);
    }
  });
  chart.append(...axis(x, known));
  const latest = known.at(-1);
  if (latest.quantiles?.length && latest.min !== latest.max) chart.append(...box(x, latest.quantiles));
  chart.setAttribute("aria-label", `Histogram from ${number(low)} to ${number(high)}`);
  return chart;
}

/** Labels are the smallest and the largest value, which are the centres of bins where each value has its own. */
function axis(x, known) {
  const low = Math.min(...known.map((part) => part.min)), high = Math.max(...known.map((part) => part.max));
  const line = svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT + 0.5, y2: HEIGHT + 0.5 });
  line.style.stroke = "var(--line)";
  const marks = low === high ? [[low, x(low), "middle"]] : [[low, 0, "start"], [high, WIDTH, "end"]];
  const zero = x(0), digits = digitsBetween(low, high, 4);
  if (low < 0 && high > 0 && zero > 70 && zero < WIDTH - 70) marks.push([0, zero, "middle"]);
  return [line, ...marks.map(([value, at, anchor]) => svg("text", { x: at, y: HEIGHT + AXIS - 4, "text-anchor": anchor }, number(value, digits)))];
}

/** 1 to 99 %, 25 to 75 %, and the median, under the axis. */
function box(x, quantiles) {
  const [, p1, , p25, p50, p75, , p99] = quantiles, y = HEIGHT + 10, digits = digitsBetween(quantiles[0], quantiles.at(-1), 5);
  const whisker = svg("line", { x1: x(p1), x2: x(p99), y1: y, y2: y });
  whisker.style.stroke = "var(--soft)";
  const middle = svg("rect", { x: x(p25), y: y - 4, width: Math.max(1, x(p75) - x(p25)), height: 8, rx: 2 });
  middle.style.fill = "var(--soft)";
  const median = svg("rect", { x: x(p50) - 1, y: y - 5, width: 2, height: 10 });
  median.style.fill = "var(--ink)";
  for (const part of [whisker, middle, median]) {
    part.addEventListener("pointermove", (event) => showTip(event, `1%: ${number(p1, digits)}\n25%: ${number(p25, digits)}\nmedian: ${number(p50, digits)}\n75%: ${number(p75, digits)}\n99%: ${number(p99, digits)}`));
    part.addEventListener("pointerleave", hideTip);
  }
  return [whisker, middle, median];
}

// Heat maps

const RAMPS = {
  light: { diverging: ["#1f4fb8", "#8fb4ee", "#f4f4f1", "#f0a58c", "#b3261e"], sequential: ["#f0f4e8", "#9fd3b6", "#3f9fae", "#2d5f9e", "#2a2a66"], change: ["#f1f1ee", "#ffc9a3", "#ee7a35", "#a8370b"] },
  dark: { diverging: ["#7db0ff", "#2f5cb0", "#14161b", "#a33b34", "#ff9c85"], sequential: ["#15181f", "#27406e", "#2b8191", "#73c48b", "#f1ef9a"], change: ["#1c2028", "#6b3413", "#e07a35", "#ffe0c2"] },
};

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" ||
  (getComputedStyle(document.documentElement).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);

function ramp(kind) {
  const stops = RAMPS[isDark() ? "dark" : "light"][kind].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return (share) => {
    const place = Math.max(0, Math.min(1, share)) * (stops.length - 1), at = Math.min(stops.length - 2, Math.floor(place));
    return [0, 1, 2].map((i) => stops[at][i] + (stops[at + 1][i] - stops[at][i]) * (place - at));
  };
}

/** The values of an encoded plane; NaN where a cell has none. */
function decodePlane({ low, high, levels }) {
  const raw = atob(levels), values = new Float64Array(raw.length / 2);
  for (let i = 0; i < values.length; i++) {
    const level = raw.charCodeAt(2 * i) | (raw.charCodeAt(2 * i + 1) << 8);
    values[i] = level ? low * (1 - (level - 1) / 65534) + high * ((level - 1) / 65534) : NaN;
  }
  return values;
}

const cellBegin = (i, size, cells) => Math.floor((i * size) / cells);

/** A heat map of one plane: the canvas, its scale and what one cell is. */
function heatMap(grid, plane, { kind, zero = true, tell }) {
  const values = decodePlane(grid[plane]);
  let { low, high } = grid[plane];
  const diverging = kind === undefined && low < 0 && high > 0;
  if (diverging && zero) { high = Math.max(-low, high); low = -high; }
  if (kind === "change") low = 0;
  const colour = ramp(kind ?? (diverging ? "diverging" : "sequential"));
  const share = (value) => (high === low && kind === "change" ? Number(value > 0) : position(value, low, high));
  const canvas = el("canvas", { className: "heat", width: grid.cellColumns, height: grid.cellRows, role: "img" });
  const height = Math.max(26, Math.min(300, (560 * grid.cellRows) / grid.cellColumns));
  canvas.style.height = `${grid.cellRows === 1 ? 34 : height}px`;
  const context = canvas.getContext("2d"), image = context.createImageData(grid.cellColumns, grid.cellRows);
  values.forEach((value, i) => {
    const [r, g, b] = Number.isNaN(value) ? [255, 0, 200] : colour(share(value));
    image.data.set([r, g, b, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", `Heat map of ${grid.cellRows} × ${grid.cellColumns} cells, ${plane} of each block`);
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const c = Math.min(grid.cellColumns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * grid.cellColumns)));
    const r = Math.min(grid.cellRows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * grid.cellRows)));
    const range = (i, size, cells) => { const from = cellBegin(i, size, cells), to = cellBegin(i + 1, size, cells) - 1; return from === to ? `${count(from)}` : `${count(from)}–${count(to)}`; };
    showTip(event, `rows ${range(r, grid.rows, grid.cellRows)}, columns ${range(c, grid.columns, grid.cellColumns)}\n${tell(r * grid.cellColumns + c)}`);
  });
  canvas.addEventListener("pointerleave", hideTip);
  const bar = el("canvas", { width: 64, height: 1 }), strip = bar.getContext("2d");
  for (let i = 0; i < 64; i++) { strip.fillStyle = `rgb(${colour(i / 63).map(Math.round).join(",")})`; strip.fillRect(i, 0, 1, 1); }
  const label = kind === "change" && plane === "share" ? percent : (value) => number(value, digitsBetween(low, high, 4));
  if (values.every(Number.isNaN)) return el("div", {}, canvas);
  const scale = low === high ? [`all ${label(low)}`] : [label(low), bar, label(high)];
  return el("div", {}, canvas, el("div", { className: "scale soft" }, ...scale));
}

/** What a cell stands for, in words. */
function gridCaption(grid, shape, verb) {
  const axes = (from, to) => (to - from === 1 ? `axis ${from}` : `axes ${from} to ${to - 1}`);
  const how = shape.length < 2 ? "Elements in order" : grid.split === 0 ? `One row: ${axes(0, shape.length)}` : grid.split === shape.length ? `Rows: ${axes(0, shape.length)}`
    : `Rows: ${axes(0, grid.split)}, columns: ${axes(grid.split, shape.length)}`;
  const sizes = (size, cells) => (size % cells ? `${Math.floor(size / cells)} or ${Math.ceil(size / cells)}` : `${size / cells}`);
  if (grid.rows === grid.cellRows && grid.columns === grid.cellColumns) return `${how}. Each cell is one element.`;
  return `${how}. Each cell is the ${verb} of a block of ${sizes(grid.rows, grid.cellRows)} × ${sizes(grid.columns, grid.cellColumns)} elements; none is left out.`;
}
