// The sections of the page, from the data that it holds.
"use strict";

const MOST_HIGHLIGHTED = 24, STATUS_ORDER = ["running", "done", "preempted", "failed", "stalled", "died"];
const OPTIONS = { axis: "step", split: null, smoothing: 0, logX: false, logY: false, others: true, hidden: new Set() };
const TABLE = { sort: "rank", isDown: false, filter: "", status: "" };
const PAGE = { slots: new Map(), curves: null, data: null, theme: null };

function start(data) {
  PAGE.data = data;
  if (!PAGE.slots.size) data.highlighted.forEach((run, slot) => PAGE.slots.set(run, slot));
  for (const run of [...PAGE.slots.keys()]) if (!data.runs[run]) PAGE.slots.delete(run);
  OPTIONS.onRange = (range) => { const back = document.getElementById("all-steps"); if (back) back.disabled = !range; };
  document.title = data.title;
  if (OPTIONS.split === null && data.runs.length) OPTIONS.split = data.highlighted.length > 3 && data.charts.some((chart) => chart.curves.some((curve) => curve.split === "validation")) ? "validation" : "both";
  const sections = [summary(data), runs(data), sweep(data), curves(data), failures(data), differences(data), times(data), checkpoints(data)].filter(Boolean);
  const kept = new Set([...document.querySelectorAll("details[open]")].map((each) => each.id)), scrolled = window.scrollY;
  document.getElementById("report").replaceChildren(bar(data, sections.slice(1)), el("main", {}, sections, foot(data)));
  for (const id of kept) if (id && document.getElementById(id)) document.getElementById(id).open = true;
  if (PAGE.curves) PAGE.curves.show(document.getElementById("charts"), data.charts);
  if (scrolled) window.scrollTo({ top: scrolled, behavior: "instant" });
  document.documentElement.dataset.ready = "yes";
}

function bar(data, sections) {
  const choose = (event) => theme(event.target.value);
  return el("header", { class: "bar" }, el("div", {},
    el("nav", { "aria-label": "Sections" }, sections.map((each) => el("a", { href: `#${each.id}` }, each.dataset.title))),
    el("select", { "aria-label": "Colours of the page", on: { change: choose } },
      [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]].map(([value, word]) => el("option", { value, selected: (PAGE.theme || "auto") === value }, word)))));
}

function theme(chosen) {
  PAGE.theme = chosen;
  const isDark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  const drawn = document.getElementById("sweep");
  if (drawn) drawn.replaceWith(sweep(PAGE.data));
  if (PAGE.curves) PAGE.curves.drawAll();
}

function section(id, title, about, ...children) {
  return el("section", { id, "data-title": title, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), about ? el("p", { class: "soft small" }, about) : null, children);
}

function summary(data) {
  return el("section", { id: "top", "data-title": "Summary", style: { margin: 0 } },
    el("h1", {}, data.title), el("p", { class: "made" }, data.made),
    el("ul", { class: "words" }, data.summary.map(([kind, words]) => el("li", { class: kind }, words))),
    el("dl", { class: "facts" }, data.facts.map(([name, value, about]) => el("div", {}, el("dt", {}, name), el("dd", { class: "value" }, value), about ? el("dd", { class: "about" }, about) : null))));
}

function foot(data) {
  return el("footer", {}, el("p", {}, data.made_by));
}

// The table of runs.

function columnsOf(data) {
  const has = (read) => data.runs.some((run) => read(run) !== null && read(run) !== undefined);
  const all = [
    { key: "rank", name: "Run", class: "name", read: (run) => run.rank, sorts: (run) => run.rank, show: nameCell },
    { key: "status", name: "Status", read: (run) => run.status, sorts: (run) => STATUS_ORDER.indexOf(run.status) + run.status, class: "state", show: (run) => [el("span", { class: `status ${run.status.replace(" ", "-")}` }, run.status), run.notes.length ? el("div", { class: "small soft" }, run.notes.join("; ")) : null] },
    { key: "best", name: data.metric ? `Best ${data.metric.name}` : "Best", class: "number", read: (run) => run.best, sorts: (run) => finite(run.best), show: (run) => number(run.best) },
    { key: "best_step", name: "at step", class: "number print-rest", read: (run) => run.best_step, show: (run) => number(run.best_step) },
    { key: "final", name: "Final", class: "number", read: (run) => run.final, sorts: (run) => finite(run.final), show: (run) => number(run.final) },
    ...data.fields.map((field) => ({ key: `field:${field.path}`, name: field.name, title: field.path, class: "value", read: (run) => run.differs[field.path], sorts: (run) => sortable(run.differs[field.path]), show: (run) => brief(run.differs[field.path]) })),
    { key: "step", name: "Step", class: "number", read: (run) => run.step, show: (run) => (run.step === null ? "–" : run.end_step && run.end_step !== run.step ? `${number(run.step)} of ${number(run.end_step)}` : number(run.step)) },
    { key: "seconds", name: "Duration", class: "number", read: (run) => run.seconds, show: (run) => duration(run.seconds) },
    { key: "speed", name: "Examples/s", class: "number print-rest", read: (run) => run.speed, show: (run) => perSecond(run.speed) },
    { key: "started", name: "Started (UTC)", class: "print-rest", read: (run) => run.started, show: (run) => when(run.started) },
    { key: "experiment", name: "Experiment", read: (run) => (new Set(data.runs.map((each) => each.experiment)).size > 1 ? run.experiment : null), show: (run) => run.experiment ?? "–" },
  ];
  return all.filter((column) => column.key === "rank" || has(column.read));
}

// NaN and infinities come as texts; they are sorted as what is not known.
const finite = (value) => (typeof value === "number" ? value : null);
// A long number with fewer digits; the whole one is in the title.
const brief = (value) => (value === undefined ? "" : /^-?\d*\.\d{5,}(e-?\d+)?$/.test(value) ? number(Number(value)) : value);
const sortable = (value) => (value === undefined ? null : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value);

function nameCell(run) {
  const slot = PAGE.slots.get(run.id);
  const box = el("input", { type: "checkbox", checked: slot !== undefined, "aria-label": `highlight ${run.name} in the charts`, on: { change: (event) => highlight(run.id, event.target.checked) } });
  return el("label", { title: run.directory }, box, slot === undefined ? null : swatch(slot), run.name);
}

function highlight(run, isOn) {
  if (!isOn) PAGE.slots.delete(run);
  else if (PAGE.slots.size < MOST_HIGHLIGHTED) {
    const used = new Set(PAGE.slots.values());
    let slot = 0;
    while (used.has(slot)) slot += 1;
    PAGE.slots.set(run, slot);
  }
  OPTIONS.hidden.delete(run);
  const { data } = PAGE;
  for (const make of [runs, differences, times]) {
    const made = make(data), old = made && document.getElementById(made.id);
    if (old && make !== runs) old.replaceWith(made);
  }
  fillRows(data);
  legend(data);
  if (PAGE.curves) PAGE.curves.drawAll();
}

function runs(data) {
  if (!data.runs.length) return null;
  const statuses = [...new Set(data.runs.map((run) => run.status))];
  const search = el("input", { type: "search", value: TABLE.filter, placeholder: "Filter: words, or field=value", "aria-label": "Filter the runs", on: { input: (event) => { TABLE.filter = event.target.value; fillRows(data); } } });
  const chosen = el("select", { "aria-label": "Status", on: { change: (event) => { TABLE.status = event.target.value; fillRows(data); } } },
    el("option", { value: "" }, "any status"), statuses.map((status) => el("option", { value: status, selected: TABLE.status === status }, status)));
  const made = section("runs", "Runs", data.runs_about,
    data.runs.length > 1 ? el("div", { class: "tools" }, search, statuses.length > 1 ? chosen : null, el("span", { id: "num-runs", role: "status" })) : null,
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of runs" }, el("table", {}, el("thead"), el("tbody"))));
  fillRows(data, made);
  return made;
}

function matches(run, words) {
  const has = (word) => {
    const found = /^([^=<>]+?)(=|<|>)(.+)$/.exec(word);
    if (!found) return `${run.name} ${run.status} ${run.experiment ?? ""} ${run.notes.join(" ")} ${Object.values(run.differs).join(" ")}`.toLowerCase().includes(word);
    const [, field, sign, wanted] = found;
    const paths = Object.keys(run.differs).filter((path) => path.toLowerCase().endsWith(field));
    const values = [...paths.map((path) => run.differs[path]), ...(field in run ? [run[field]] : [])].filter((value) => value !== null);
    if (sign === "=") return values.some((value) => String(value).toLowerCase() === wanted);
    return values.some((value) => (sign === "<" ? Number(value) < Number(wanted) : Number(value) > Number(wanted)));
  };
  return words.every(has);
}

function fillRows(data, inside = document.getElementById("runs")) {
  const columns = columnsOf(data), column = columns.find((each) => each.key === TABLE.sort) || columns[0];
  const key = column.sorts || column.read, words = TABLE.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = data.runs.filter((run) => (!TABLE.status || run.status === TABLE.status) && matches(run, words));
  kept.sort((a, b) => compare(key(a), key(b), TABLE.isDown) || a.rank - b.rank);
  const sortBy = (each) => { TABLE.isDown = TABLE.sort === each.key ? !TABLE.isDown : false; TABLE.sort = each.key; fillRows(data); };
  const focused = document.activeElement?.dataset?.column;
  inside.querySelector("thead").replaceChildren(el("tr", {}, columns.map((each) => el("th", { class: each.class, scope: "col", "aria-sort": TABLE.sort === each.key ? (TABLE.isDown ? "descending" : "ascending") : null },
    el("button", { type: "button", title: each.title, "data-column": each.key, on: { click: () => sortBy(each) } }, each.name, TABLE.sort === each.key && data.runs.length > 1 ? (TABLE.isDown ? " ↓" : " ↑") : "")))));
  inside.querySelector("tbody").replaceChildren(...kept.map((run) => el("tr", { class: run.is_best ? "best" : null, "data-run": run.name }, columns.map((each) => el("td", { class: each.class, title: each.class === "value" ? run.differs[each.title] : null }, each.show(run))))));
  if (focused) [...inside.querySelectorAll("thead button")].find((each) => each.dataset.column === focused)?.focus();
  const count = inside.querySelector("#num-runs");
  if (count) count.textContent = kept.length === data.runs.length ? `${kept.length} runs` : `${kept.length} of ${data.runs.length} runs`;
}

function compare(a, b, isDown) {
  const [left, right] = [a ?? null, b ?? null];
  if (left === null || right === null) return (left === null) - (right === null);
  const order = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
  return isDown ? -order : order;
}

// Curves.

function curves(data) {
  if (!data.charts.length) { PAGE.curves = null; return null; }
  PAGE.curves = new Curves(data.runs, OPTIONS, PAGE.slots);
  const redraw = (change) => { change(); PAGE.curves.refresh(); };
  const splits = [...new Set(data.charts.flatMap((chart) => chart.curves.map((curve) => curve.split)))];
  const axes = [["step", "Step"], ...(data.runs.some((run) => run.epoch_steps) ? [["epoch", "Epoch"]] : []), ["time", "Time"]];
  const words = { both: "Both", train: "Training", validation: "Validation" };
  const toggle = (name, key) => el("label", {}, el("input", { type: "checkbox", checked: OPTIONS[key], on: { change: (event) => { OPTIONS[key] = event.target.checked; PAGE.curves.drawAll(); } } }), name);
  const others = data.runs.length > data.highlighted.length;
  const made = section("curves", "Curves", [data.curves_about, el("span", { class: "on-screen" }, " Drag over a chart to zoom all of them, double-click to see everything.")],
    el("div", { class: "tools" },
      splits.length > 1 ? choice("Which curves", [["both", words.both], ...splits.map((split) => [split, words[split] || split])], OPTIONS.split, (value) => redraw(() => { OPTIONS.split = value; })) : null,
      choice("Over", axes, OPTIONS.axis, (value) => { OPTIONS.axis = value; PAGE.curves.range = null; OPTIONS.onRange(null); PAGE.curves.drawAll(); }),
      el("label", {}, "Smoothing", el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: OPTIONS.smoothing, on: { input: (event) => redraw(() => { OPTIONS.smoothing = Number(event.target.value); }) } })),
      toggle("log y", "logY"), toggle("log x", "logX"), others ? toggle("other runs in grey", "others") : null,
      el("button", { class: "button", type: "button", id: "all-steps", disabled: true, on: { click: () => PAGE.curves.setRange(null) } }, "Show everything")),
    el("ul", { class: "legend", id: "legend", "aria-label": "Runs in the charts" }), el("div", { class: "charts", id: "charts" }));
  legend(data, made.querySelector("#legend"));
  return made;
}

function choice(name, options, chosen, act) {
  const group = el("span", { class: "group", role: "group", "aria-label": name }, options.map(([value, word]) => el("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, on: { click: (event) => {
    for (const each of group.children) each.setAttribute("aria-pressed", String(each === event.currentTarget));
    act(value);
  } } }, word)));
  return group;
}

function legend(data, list = document.getElementById("legend")) {
  if (!list) return;
  const shown = [...PAGE.slots].sort((a, b) => a[1] - b[1]);
  list.replaceChildren(...shown.map(([run, slot]) => el("li", {}, el("button", { type: "button", title: data.runs[run].name, "aria-pressed": String(!OPTIONS.hidden.has(run)), on: { click: (event) => {
    if (OPTIONS.hidden.has(run)) OPTIONS.hidden.delete(run); else OPTIONS.hidden.add(run);
    event.currentTarget.setAttribute("aria-pressed", String(!OPTIONS.hidden.has(run)));
    PAGE.curves.refresh();
  } } }, swatch(slot), el("span", {}, data.runs[run].name)))));
}

// What went wrong, what differs, where the time went.

function failures(data) {
  const bad = data.runs.filter((run) => run.error);
  if (!bad.length) return null;
  return section("failures", "What went wrong", null, bad.slice(0, 30).map((run) => el("div", { class: "card" }, el("h3", {}, run.name, el("span", { class: "soft" }, run.step === null ? `: ${run.status}` : `: ${run.status} at step ${number(run.step)}`)), el("pre", {}, run.error))),
    bad.length > 30 ? el("p", { class: "soft" }, `and ${bad.length - 30} more; the table of runs has them all.`) : null);
}

const shownRuns = (data, most) => [...PAGE.slots].sort((a, b) => a[1] - b[1]).map(([run]) => data.runs[run]).slice(0, most);

function differences(data) {
  const shown = shownRuns(data, 8), fields = data.config_fields;
  if (data.runs.length === 1 && data.config) {
    return section("config", "Configuration", data.config_about, el("details", { id: "whole-config" }, el("summary", {}, `All ${Object.keys(data.config).length} fields`), rowsTable(["Field", "Value"], Object.entries(data.config).map(([path, value]) => [el("code", {}, path), el("code", {}, value)]))));
  }
  if (!fields.length || !shown.length) return null;
  const head = el("tr", {}, el("th", { class: "name", scope: "col" }, "Field"), shown.map((run) => el("th", { scope: "col" }, PAGE.slots.has(run.id) ? swatch(PAGE.slots.get(run.id)) : null, run.name)));
  const first = shown[0];
  const body = fields.map((path) => el("tr", {}, el("td", { class: "name", title: path }, el("code", {}, path)), shown.map((run) => {
    const value = run.differs[path];
    return el("td", { class: value !== first.differs[path] ? "value changed" : "value", title: value ?? null }, brief(value));
  })));
  return section("config", "What differs", [data.config_about, shown.length > 1 ? `Shaded values differ from those of ${first.name}.` : ""].filter(Boolean).join(" "), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Fields that differ" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))));
}

function rowsTable(names, rows, classes = []) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": names.join(", ") }, el("table", {}, el("thead", {}, el("tr", {}, names.map((name, i) => el("th", { scope: "col", class: classes[i] }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: classes[i] }, cell)))))));
}

function times(data) {
  const shown = shownRuns(data, 12).filter((run) => run.time);
  if (!shown.length) return null;
  const used = PARTS.filter((part) => shown.some((run) => (run.time.parts[part] || 0) > 0));
  const rows = shown.map((run) => {
    const { time } = run, total = Object.values(time.parts).reduce((sum, each) => sum + (each || 0), 0) || 1;
    const stack = el("div", { class: "stack", role: "img", "aria-label": used.map((part) => `${PART_WORDS[part] || part} ${percent((time.parts[part] || 0) / total)}`).join(", ") },
      used.map((part) => el("i", { title: `${PART_WORDS[part] || part}: ${duration(time.parts[part] || 0)}, ${percent((time.parts[part] || 0) / total)}`, style: { background: `var(--p-${part})`, width: `${(100 * (time.parts[part] || 0)) / total}%` } })));
    return [run.name, stack, duration(total), percent(time.goodput), number(time.restarts), time.verdict || ""];
  });
  const hasVerdict = shown.some((run) => run.time.verdict), names = ["Run", "Where the time went", "In all", "Goodput", "Restarts", ...(hasVerdict ? ["Advice"] : [])];
  const exact = [["Run", ...used.map((part) => PART_WORDS[part] || part)], shown.map((run) => [run.name, ...used.map((part) => duration(run.time.parts[part]))])];
  return section("time", "Time", "Goodput is the share of the time, from the first start to the end, that went into steps whose results were kept.",
    rowsTable(names, rows.map((row) => row.slice(0, names.length)), ["name", "", "number", "number", "number", "wrap small soft"]),
    el("ul", { class: "keys" }, used.map((part) => el("li", {}, el("i", { style: { background: `var(--p-${part})` } }), PART_WORDS[part] || part))),
    el("details", { id: "times-in-numbers" }, el("summary", {}, "The same in numbers"), rowsTable(exact[0], exact[1], ["name", ...used.map(() => "number")])));
}

// What was saved, and the figures of a sweep.

function checkpoints(data) {
  if (!data.checkpoints.length) return null;
  const rows = data.checkpoints.map((each) => [data.runs[each.run].name, each.kind, number(each.step), each.value === null ? "–" : number(each.value), bytes(each.size_bytes), el("code", {}, each.path)]);
  return section("checkpoints", "Checkpoints", data.checkpoints_about, rowsTable(["Run", "What", "Step", data.metric ? data.metric.name : "Value", "Size", "Path"], rows, ["name", "", "number", "number", "number", "wrap"]));
}

function sweep(data) {
  if (!data.sweep) return null;
  const drawn = new Sweep(data.sweep), { steps } = data.sweep, courses = drawn.courses();
  const saved = steps.without_pruning > steps.spent ? `Pruning saved ${percent(1 - steps.spent / steps.without_pruning)} of the steps: ${number(steps.spent)} of ${number(steps.without_pruning)} were trained. ` : "";
  if (!drawn.compared.length) return section("sweep", "Sweep", data.sweep_about, el("p", { class: "soft" }, "No trial is complete yet."));
  return section("sweep", "Sweep", data.sweep_about,
    el("div", { class: "three" }, el("div", { class: "card" }, el("h3", {}, "Trials, and the best so far"), drawn.history()),
      courses ? el("div", { class: "card" }, el("h3", {}, "Pruning"), courses, el("p", { class: "small soft" }, `${saved}A cross marks where a trial was pruned.`)) : null,
      el("div", { class: "card" }, el("h3", {}, "Which fields matter"), drawn.importances(), el("p", { class: "small soft" }, "The share of each field in what told the best trials from the others."))),
    el("div", { class: "card" }, el("h3", {}, "Parallel coordinates"), drawn.parallel()),
    el("h3", { class: "apart" }, "Slices"), el("div", { class: "slices" }, drawn.slices()), drawn.axisOfMetric().isCut ? el("p", { class: "small soft" }, "A triangle is a trial whose result is far outside of the chart.") : null);
}

// The start, changes of colours, printing.

function printing(isOn) {
  document.documentElement.dataset.theme = isOn ? "light" : "";
  if (!isOn) theme(PAGE.theme);
  document.documentElement.classList.toggle("printing", isOn);
  if (!PAGE.curves) return;
  PAGE.curves.drawAll();
}

theme("auto");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(PAGE.theme));
addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
let resizing = null;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => PAGE.curves && PAGE.curves.resize(), 100); });
start(JSON.parse(document.getElementById("data").textContent));
