// Text: names made visible, numbers made short, elements made of text nodes. Nothing here parses HTML.

const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}\\]|(?! )\p{Zs}/gu;

/** A name of a file, safe to show: control, bidi and other invisible characters are escaped, as on the command line. */
function visible(name) {
  return name.replace(INVISIBLE, (c) => {
    const code = c.codePointAt(0);
    if (c === "\\") return "\\\\";
    const short = { 9: "\\t", 10: "\\n", 13: "\\r" }[code];
    if (short) return short;
    const hex = code.toString(16);
    return code < 256 ? "\\x" + hex.padStart(2, "0") : code < 65536 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
}

/** The middle elided. */
function shorten(text, longest) {
  if (text.length <= longest) return text;
  const half = (longest - 1) >> 1;
  return text.slice(0, half) + "…" + text.slice(-half);
}

const show = (name, longest = 160) => shorten(visible(name.length > 4 * longest ? shorten(name, 4 * longest) : name), longest);

function bytes(n) {
  if (n < 1024) return `${n} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    n /= 1024;
    if (n < 1024) return `${n.toFixed(1)} ${unit}`;
  }
  return `${(n / 1024).toFixed(1)} TiB`;
}

const count = (n) => n.toLocaleString("en");
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

/** A large number in three digits: 6.74 B. */
function large(n) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "K"]]) {
    if (n >= size) return `${(n / (unit === "K" ? 1e3 : size)).toPrecision(3)} ${unit}`;
  }
  return count(n);
}

/** A number of a card. NaN and the infinities are text in JSON, a complex number is a pair. */
function number(x, digits = 5) {
  if (x === null || x === undefined) return "–";
  if (Array.isArray(x)) return `${number(x[0], digits)} + ${number(x[1], digits)}i`.replace("+ −", "− ");
  if (typeof x === "string") return x.replace("Infinity", "∞").replace("-", "−");
  if (Number.isInteger(x) && Math.abs(x) < 1e9) return count(x).replace("-", "−");
  const rounded = Number(x.toPrecision(digits)), size = Math.abs(rounded);
  const text = size >= 10 ** Math.max(6, digits) || size < 1e-4 ? x.toExponential(digits - 1) : rounded.toLocaleString("en", { maximumFractionDigits: 20 });
  return text.replace(/\.?0+e/, "e").replace("e+", "e").replaceAll("-", "−");
}

/** Digits that tell numbers from `low` to `high` apart, at least so many: 1,000,000.002 and 1,000,000.003. */
const digitsBetween = (low, high, least) => (low === high ? least : Math.min(15, Math.max(least, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low) || 1)) + 3)));

function percent(share) {
  if (share === 0 || share === 1) return `${100 * share}%`;
  const value = 100 * share;
  const rounded = Number(value.toPrecision(3));
  return value < 0.001 ? "< 0.001%" : value > 99.99 ? "> 99.99%" : `${rounded < 100 ? rounded : value.toFixed(2)}%`;
}

/** A name in a list or a title, where nothing would be seen of an empty one. */
const named = (name, longest) => show(name, longest) || "''";

const shapeText = (shape) => (shape.length ? shape.map(count).join(" × ") : "scalar");

/** An element with properties and children; text becomes text nodes. */
function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "style") Object.assign(made.style, value);
    else if (key in made && key !== "role") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

const tip = byId("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}
const hideTip = () => { tip.hidden = true; };
