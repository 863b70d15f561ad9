// Elements, numbers in words, colours, tables. Text enters the page as text nodes alone, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const NUM_COLOURS = 8, DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];

// Long names break between their parts, where a line has to; words and numbers do not.
const PARTS_OF_NAMES = /(?<=[A-Za-z]{2}[_./:=-]+)(?=[A-Za-z0-9])/;
const breakable = (text) => text.split(PARTS_OF_NAMES).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "style") for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    else if (name === "checked") node.checked = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes,
  children.flat(Infinity).flatMap((child) => (typeof child === "string" ? breakable(child) : [child])));
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children.flat(Infinity));

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value; // NaN and infinities
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  const short = Number(value.toPrecision(digits));
  return size >= 1000 ? short.toLocaleString("en-US") : String(short);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, length]) => seconds >= length || length === 1);
  return `${number(seconds / length, 2)} ${unit}`;
}

const megabytes = (size) => (size === null ? "–" : `${number(size / 1e6, 3)} MB`);
const percent = (share) => (share === null ? "–" : `${share > 0 && share < 0.1 ? (100 * share).toFixed(1) : Math.round(100 * share)} %`);

// The colour that a variable of the style has now, in light or dark, for the canvas of a chart.
const probe = document.createElement("i");
function css(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}
const dashOf = (slot) => DASHES[(slot + Math.floor(slot / NUM_COLOURS)) % DASHES.length];

function swatch(slot) {
  return svg("svg", { class: "swatch", width: 26, height: 10, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": dashOf(slot).join(" ") || null, style: { stroke: `var(--c${slot % NUM_COLOURS})` } }));
}

// A part of the page that scrolls fades out at the edges behind which there is more.
function scrolling(node) {
  const look = () => {
    node.classList.toggle("more-right", node.scrollLeft + node.clientWidth < node.scrollWidth - 2);
    node.classList.toggle("more-below", node.scrollTop + node.clientHeight < node.scrollHeight - 2);
  };
  node.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(node);
  return node;
}

// `columns`: name, class, title and cell(row); `sort`: act on a click, and the column and direction of the order.
function table(label, columns, rows, sort) {
  const heading = (column, i) => {
    const isSorted = sort && sort.at === i, name = [column.name, isSorted ? (sort.isDown ? " ↓" : " ↑") : ""];
    const order = isSorted ? (sort.isDown ? "descending" : "ascending") : null;
    return el("th", { scope: "col", class: column.class, title: column.title, "aria-sort": order },
      sort ? el("button", { type: "button", on: { click: () => sort.act(i) } }, name) : name);
  };
  const body = rows.map((row) => el("tr", row.attributes, columns.map((column) => {
    const cell = column.cell(row);
    return el("td", { class: [column.class, column.marks && column.marks(row)].filter(Boolean).join(" "), title: column.full && column.full(row) }, cell);
  })));
  const node = el("table", {}, el("thead", {}, el("tr", {}, columns.map(heading))), el("tbody", {}, body));
  return scrolling(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, node));
}
