// Elements, numbers in words, colours. Text enters the page as text nodes alone, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const PARTS = ["steps", "input", "tracing", "evaluation", "save", "export", "actions", "trackers", "start", "other", "lost", "between"];
const PART_WORDS = { input: "waiting for data", save: "saves", start: "start and restarts", lost: "lost by kills", between: "no process" };
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];
const NUM_COLOURS = 8;

// Long names break between their parts, where a line has to; numbers do not.
const PARTS_OF_NAMES = /(?<=[A-Za-z]{2}[_./:=-]+)(?=[A-Za-z0-9])/;
const breakable = (text) => text.split(PARTS_OF_NAMES).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else if (name === "checked" || name === "value") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children.flat(Infinity).flatMap((child) => (typeof child === "string" ? breakable(child) : [child])));
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// A text in Markdown: what is bold, and code, as such; all else as it was written.
function marked(text) {
  return text.split(/(\*\*[^*\n]+\*\*|`[^`\n]+`)/).map((part, i) => (i % 2 === 0 ? part : part[0] === "`" ? el("code", {}, part.slice(1, -1)) : el("b", {}, part.slice(2, -2))));
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  const short = Number(value.toPrecision(digits));
  return size >= 1000 ? short.toLocaleString("en-US") : String(short);
}

// As `recorded.duration_text` writes it.
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  for (const [unit, length, inner, innerLength] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    if (whole < length) continue;
    const rest = Math.floor((whole % length) / innerLength);
    return `${Math.floor(whole / length)} ${unit}${rest ? ` ${rest} ${inner}` : ""}`;
  }
  return `${whole} s`;
}

const perSecond = (speed) => (speed === null || speed === undefined ? "–" : speed >= 100 ? Math.round(speed).toLocaleString("en-US") : number(speed, 3));

function bytes(size) {
  if (size === null || size === undefined) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024 || unit === "GiB") return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1024;
  }
}

const when = (seconds) => (seconds === null || seconds === undefined ? "–" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " "));
const percent = (share) => (share === null || share === undefined ? "–" : `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : Math.round(100 * share)} %`);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (slot) => css(`--c${slot % NUM_COLOURS}`);
const dashOf = (slot) => DASHES[(slot + Math.floor(slot / NUM_COLOURS)) % DASHES.length];

function swatch(slot) {
  const dash = dashOf(slot).join(" ");
  return svg("svg", { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": dash || null, style: { stroke: `var(--c${slot % NUM_COLOURS})` } }));
}

// Steps from light to dark that stay apart for all kinds of colour vision (viridis, cut where it is too light).
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [215, 215, 50]];
function shade(share) {
  const at = Math.max(0, Math.min(1, share)) * (SCALE.length - 1), low = Math.min(SCALE.length - 2, Math.floor(at));
  const mixed = SCALE[low].map((from, i) => Math.round(from + (SCALE[low + 1][i] - from) * (at - low)));
  return `rgb(${mixed.join(" ")})`;
}
