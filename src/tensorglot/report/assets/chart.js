// Charts of a card: a histogram with quantiles, and heat maps.

const WIDTH = 560, HEIGHT = 150, AXIS = 34;

/** Bars on a common axis; of two histograms the first is an outline. Heights are shares for each unit of the axis. */
function histogramChart(series, logarithmic) {
  const known = series.filter((part) => part?.histogram);
  if (!known.length) return null;
  let low = Math.min(...known.map((part) => part.histogram.low)), high = Math.max(...known.map((part) => part.histogram.high));
  if (low === high) { const pad = Math.abs(low) * 0.05 || 0.5; low -= pad; high += pad; }
  const x = (value) => ((value - low) / (high - low)) * WIDTH;
  const bars = known.map(({ histogram }) => {
    const { counts } = histogram, sum = counts.reduce((a, b) => a + b, 0);
    const single = counts.length === 1;  // one value: a thin bar
    const width = single ? (high - low) / 30 : (histogram.high - histogram.low) / counts.length;
    const start = single ? histogram.low / 2 + histogram.high / 2 - width / 2 : histogram.low;
    return counts.map((n, i) => ({ from: start + i * width, to: start + (i + 1) * width, n, density: n / sum / (width / (high - low)) }));
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
      const left = x(bar.from), width = Math.max(0.75, x(bar.to) - left - 1), height = Math.max(1, y(bar.density));
      const rect = svg("rect", { x: left, y: HEIGHT - height, width, height, rx: 1 });
      rect.style.fill = colour;
      if (outline) { rect.style.fillOpacity = "0.25"; rect.style.stroke = colour; rect.style.strokeWidth = "0.75"; }
      if (bars.length > 1 && s === 1) rect.style.fillOpacity = "0.55";
      rect.addEventListener("pointermove", (event) => showTip(event, `${number(bar.from)} to ${number(bar.to)}\n${count(bar.n)} elements`));
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
  const zero = x(0);
  if (low < 0 && high > 0 && zero > 70 && zero < WIDTH - 70) marks.push([0, zero, "middle"]);
  return [line, ...marks.map(([value, at, anchor]) => svg("text", { x: at, y: HEIGHT + AXIS - 4, "text-anchor": anchor }, number(value, 4)))];
}

/** 1 to 99 %, 25 to 75 %, and the median, under the axis. */
function box(x, quantiles) {
  const [, p1, , p25, p50, p75, , p99] = quantiles, y = HEIGHT + 10;
  const whisker = svg("line", { x1: x(p1), x2: x(p99), y1: y, y2: y });
  whisker.style.stroke = "var(--soft)";
  const middle = svg("rect", { x: x(p25), y: y - 4, width: Math.max(1, x(p75) - x(p25)), height: 8, rx: 2 });
  middle.style.fill = "var(--soft)";
  const median = svg("rect", { x: x(p50) - 1, y: y - 5, width: 2, height: 10 });
  median.style.fill = "var(--ink)";
  for (const part of [whisker, middle, median]) {
    part.addEventListener("pointermove", (event) => showTip(event, `1%: ${number(p1)}\n25%: ${number(p25)}\nmedian: ${number(p50)}\n75%: ${number(p75)}\n99%: ${number(p99)}`));
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
  const share = (value) => (high > low ? (value - low) / (high - low) : kind === "change" ? Number(value > 0) : 0.5);
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
  const label = kind === "change" && plane === "share" ? percent : (value) => number(value, 4);
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
