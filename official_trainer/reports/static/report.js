// The sections of the page, from the data that it holds.
"use strict";

const MOST_HIGHLIGHTED = 24;
const PARTS = ["steps", "input", "tracing", "evaluation", "save", "export", "actions", "trackers", "start", "other", "between"];
const PART_WORDS = { input: "waiting for data", save: "saves", start: "start and restarts", between: "no process, or not recorded" };
const DATA = JSON.parse(document.getElementById("data").textContent), { runs: RUNS, metric: METRIC } = DATA;
const SLOTS = new Map(DATA.highlighted.map((run, slot) => [run, slot]));
const hasEvaluations = DATA.charts.some((chart) => chart.curves.some((curve) => curve.split === "validation"));
const OPTIONS = { split: SLOTS.size > 3 && hasEvaluations ? "validation" : null, smoothing: 0 };
const ORDER = { at: METRIC ? 2 : 0, isDown: Boolean(METRIC) && METRIC.direction === "max", filter: "" };
const CHARTS = new Curves(RUNS, OPTIONS, SLOTS);

const section = (id, title, about, ...children) => el("section", { id, "data-title": title, "aria-label": title },
  el("h2", {}, title), about ? el("p", { class: "soft small" }, about) : null, children);
const inColour = () => [...SLOTS].sort((a, b) => a[1] - b[1]).map(([run]) => RUNS[run]);
const whole = (text) => (text && text.length <= 12 ? "whole" : ""); // a short value or name does not break
const nameOf = (run) => [SLOTS.has(run.id) ? swatch(SLOTS.get(run.id)) : null, run.name];
// A long number with fewer digits; the whole one is in the title.
const brief = (value) => (value === undefined ? "" : /^-?\d*\.\d{5,}(e-?\d+)?$/.test(value) ? number(Number(value)) : value);

function summary() {
  const fact = ([name, value, about]) => el("div", {}, el("dt", {}, name), el("dd", { class: "value" }, value), el("dd", { class: "about" }, about));
  return el("section", { id: "top" }, el("h1", {}, DATA.title), el("p", { class: "made" }, DATA.made), el("dl", { class: "facts" }, DATA.facts.map(fact)));
}

// The table of runs.

const value = (read, show = number, kind = "number") => ({ class: kind, read, cell: (run) => show(read(run)) });
const tick = (run) => el("input", { type: "checkbox", checked: SLOTS.has(run.id), "aria-label": `show ${run.name} in the charts`,
  on: { change: (event) => highlight(run.id, event.target.checked) } });
const state = (run) => [el("span", { class: `status ${run.status}` }, run.status), run.notes.map((note) => el("div", { class: "small soft" }, note))];
const steps = (run) => (run.end_step && run.end_step !== run.step ? `${number(run.step)} of ${number(run.end_step)}` : number(run.step));
const fieldColumn = ({ name, path }) => ({ name, title: path, class: "value", read: (run) => run.differs[path] ?? null, cell: (run) => brief(run.differs[path]), full: (run) => run.differs[path], marks: (run) => whole(run.differs[path]) });
const COLUMNS = [
  { name: "Run", class: "name", read: (run) => run.id, cell: (run) => el("label", {}, tick(run), el("span", { class: whole(run.name) }, nameOf(run))), full: (run) => run.directory },
  { name: "Status", class: "state", read: (run) => run.status, cell: state },
  { name: METRIC ? `Best ${METRIC.name}` : "Best", ...value((run) => run.best) },
  { name: "at step", ...value((run) => run.best_step, number, "number extra") },
  { name: "Final", ...value((run) => run.final) },
  ...DATA.fields.map(fieldColumn),
  { name: "Step", ...value((run) => run.step), cell: steps },
  { name: "Duration", ...value((run) => run.seconds, duration) },
  { name: "Examples/s", ...value((run) => run.speed, (speed) => number(speed, 3), "number extra") },
].filter((column, i) => i < 3 || RUNS.some((run) => column.read(run) !== null));

// Numbers as numbers, and what is not known last.
function sorted() {
  const { read } = COLUMNS[ORDER.at], sign = ORDER.isDown ? -1 : 1;
  return RUNS.map((run) => ({ run, key: read(run), parsed: Number(read(run) ?? NaN) })).sort((a, b) => {
    const isLast = (row) => row.key === null || row.key === "NaN";
    if (isLast(a) || isLast(b)) return isLast(a) - isLast(b);
    const areNumbers = !Number.isNaN(a.parsed) && !Number.isNaN(b.parsed);
    return sign * (areNumbers ? a.parsed - b.parsed : String(a.key).localeCompare(String(b.key), "en", { numeric: true }));
  }).map(({ run }) => run);
}

function runsTable() {
  const words = ORDER.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const textOf = (run) => [run.name, run.status, run.experiment, ...run.notes, ...Object.entries(run.differs).map((field) => field.join("="))].join(" ").toLowerCase();
  const shown = sorted().filter((run) => words.every((word) => textOf(run).includes(word)));
  const act = (at) => { ORDER.isDown = ORDER.at === at && !ORDER.isDown; ORDER.at = at; refresh(); };
  const about = el("p", { class: "small soft", id: "num-runs", role: "status" }, words.length ? `${shown.length} of ${RUNS.length} runs` : "");
  return [about, table("Table of runs", COLUMNS, shown, { ...ORDER, act })];
}

const refresh = () => document.getElementById("runs-table").replaceChildren(...runsTable());

function runsSection() {
  const search = el("input", { type: "search", placeholder: "Filter, such as failed or seed=1", "aria-label": "Filter the runs",
    on: { input: (event) => { ORDER.filter = event.target.value; refresh(); } } });
  return section("runs", "Runs", DATA.runs_about, RUNS.length > 1 ? el("div", { class: "tools" }, search) : null, el("div", { id: "runs-table" }, runsTable()));
}

function highlight(run, isOn) {
  if (!isOn) SLOTS.delete(run);
  else if (SLOTS.size < MOST_HIGHLIGHTED) {
    const used = [...SLOTS.values()];
    SLOTS.set(run, [...Array(MOST_HIGHLIGHTED).keys()].find((slot) => !used.includes(slot)));
  }
  refresh();
  for (const node of [differences(), times(), legend()]) if (node) document.getElementById(node.id)?.replaceWith(node);
  if (DATA.charts.length) CHARTS.draw();
}

// Curves.

const legend = () => el("ul", { class: "legend", id: "legend", "aria-label": "Runs in the charts" },
  inColour().map((run) => el("li", { title: run.name }, nameOf(run))));

function curves() {
  if (!DATA.charts.length) return null;
  const change = (name, to) => { OPTIONS[name] = to; CHARTS.draw(); };
  const splits = [...new Set(DATA.charts.flatMap((chart) => chart.curves.map((curve) => curve.split)))];
  const options = [["", "all curves"], ...splits.map((split) => [split, split])]
    .map(([key, word]) => el("option", { value: key, selected: (OPTIONS.split || "") === key }, word));
  return section("curves", "Curves", [DATA.curves_about, el("span", { class: "on-screen" }, " Drag over a chart to zoom all of them, and double-click to see everything.")],
    el("div", { class: "tools" },
      splits.length > 1 ? el("select", { "aria-label": "Which curves", on: { change: (event) => change("split", event.target.value || null) } }, options) : null,
      el("label", {}, "Smoothing", el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, on: { input: (event) => change("smoothing", Number(event.target.value)) } }))),
    legend(), el("div", { class: "charts", id: "charts" }));
}

// The figures of a sweep: results by trial with the best so far, and which fields matter.

function history({ metric, direction, best, trials }) {
  const points = trials.filter(([, y]) => typeof y === "number");
  const ys = points.map(([, y]) => y), low = Math.min(...ys), high = Math.max(...ys), last = Math.max(1, ...points.map(([x]) => x));
  const x = (trial) => 52 + (330 * trial) / last, y = (result) => 170 - (150 * (result - low)) / (high - low || 1);
  const grid = [low, (low + high) / 2, high].map((value) => [svg("line", { class: "grid", x1: 52, x2: 382, y1: y(value), y2: y(value) }),
    svg("text", { x: 46, y: y(value) + 4, "text-anchor": "end" }, number(value, 3))]);
  const better = direction === "max" ? Math.max : Math.min, soFar = ys.map((_, i) => better(...ys.slice(0, i + 1)));
  const path = points.map(([trial], i) => (i ? `H${x(trial)}V${y(soFar[i])}` : `M${x(trial)} ${y(soFar[i])}`)).join("");
  const dots = points.map(([trial, result]) => svg("circle", { cx: x(trial), cy: y(result), r: 3.5, class: trial === best ? "best" : "dot" },
    svg("title", {}, `trial ${trial}: ${number(result)}`)));
  const ends = [svg("text", { x: 52, y: 195 }, "trial 0"), svg("text", { x: 382, y: 195, "text-anchor": "end" }, `trial ${last}`)];
  return el("div", { class: "card" }, el("h3", {}, `${metric} by trial, ${direction === "max" ? "higher" : "lower"} is better`),
    svg("svg", { viewBox: "0 0 400 200", role: "img", "aria-label": `${points.length} results, the best ${number(soFar.at(-1))}` },
      grid, svg("path", { d: path, class: "so-far" }), dots, ends));
}

function sweep() {
  if (!DATA.sweep) return null;
  const { importance, left_out: leftOut, trials } = DATA.sweep;
  const bars = importance.map(([name, share]) => el("li", {}, el("span", {}, name), el("b", {}, percent(share)), el("i", { style: { width: `${100 * share}%` } })));
  const about = `${trials.length} complete trials are drawn.${leftOut.length ? ` Left out: ${leftOut.join(", ")}.` : ""}`;
  return section("sweep", "Sweep", about, trials.length ? el("div", { class: "charts" }, history(DATA.sweep),
    bars.length ? el("div", { class: "card" }, el("h3", {}, "Which fields matter"), el("ul", { class: "bars" }, bars)) : null) : null);
}

// What differs, where the time went, what was saved.

function differences() {
  if (DATA.config) {
    const columns = ["Field", "Value", "Set by"].map((name, i) => ({ name, class: i ? "wrap" : "name", cell: (row) => el("code", {}, row[i]) }));
    const all = el("details", {}, el("summary", {}, `All ${DATA.config.length} fields`), table("Configuration", columns, DATA.config));
    return section("config", "Configuration", DATA.config_about, all);
  }
  const shown = inColour(), [first] = shown;
  if (!DATA.config_fields.length || !first) return null;
  const columns = [{ name: "Field", class: "name", cell: (path) => el("code", {}, path) }, ...shown.map((run) => ({
    name: nameOf(run), class: "value", marks: (path) => `${whole(run.differs[path])} ${run.differs[path] !== first.differs[path] ? "changed" : ""}`,
    cell: (path) => brief(run.differs[path]), full: (path) => run.differs[path],
  }))];
  return section("config", "What differs", `${DATA.config_about} Shaded values differ from those of ${first.name}.`, table("Fields that differ", columns, DATA.config_fields));
}

function times() {
  const shown = inColour().filter((run) => run.time), used = PARTS.filter((part) => shown.some((run) => run.time.seconds[part] > 0));
  if (!shown.length) return null;
  const total = (run) => Object.values(run.time.seconds).reduce((sum, seconds) => sum + seconds, 0) || 1;
  const columns = [
    { name: "Run", class: "name", cell: nameOf },
    { name: "In all", class: "number", cell: (run) => duration(total(run)) },
    { name: "Goodput", class: "number", cell: (run) => percent(run.time.goodput) },
    { name: "Restarts", class: "number", cell: (run) => number(run.time.restarts) },
    ...used.map((part) => ({ name: PART_WORDS[part] || part, class: "number", cell: (run) => percent((run.time.seconds[part] || 0) / total(run)) })),
  ];
  const about = "Goodput is the share of the time, from the first start to the end, that went into steps whose results were kept.";
  return section("time", "Time", about, table("Time", columns, shown));
}

function checkpoints() {
  const columns = [
    { name: "Run", class: "name", cell: (row) => RUNS[row.run].name },
    { name: "What", class: "wrap", cell: (row) => row.role },
    { name: "Step", class: "number", cell: (row) => number(row.step) },
    { name: "Size", class: "number", cell: (row) => megabytes(row.size_bytes) },
    { name: "Path", class: "wrap", cell: (row) => el("code", {}, row.path) },
  ];
  return DATA.checkpoints.length ? section("checkpoints", "Checkpoints", DATA.checkpoints_about, table("Checkpoints", columns, DATA.checkpoints)) : null;
}

const SECTIONS = [summary(), runsSection(), sweep(), curves(), differences(), times(), checkpoints()].filter(Boolean);
document.getElementById("report").replaceChildren(
  el("header", { class: "bar" }, scrolling(el("nav", { "aria-label": "Sections" }, SECTIONS.slice(1).map((node) => el("a", { href: `#${node.id}` }, node.dataset.title))))),
  el("main", {}, SECTIONS));
if (DATA.charts.length) CHARTS.show(document.getElementById("charts"), DATA.charts);
const redraw = () => DATA.charts.length && CHARTS.draw();
// Paper is light, and has the charts that are off the screen too; all are drawn before the page learns the paper's width.
const printing = (isOn) => { document.documentElement.classList.toggle("printing", isOn); redraw(); };
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.documentElement.dataset.ready = "yes";
