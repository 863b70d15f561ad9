// Figures of a sweep in SVG: bars, parallel coordinates, slices, the best so far, the curves of pruned trials.
"use strict";

class Axis {
  // From values of a dimension, or of a metric, to 0..1. A choice has a place for each of its values.
  constructor({ values, isLog = false, choices = null, isRobust = false }) {
    this.choices = choices && choices.map(text);
    let finite = values.filter((value) => typeof value === "number" && Number.isFinite(value) && (!isLog || value > 0));
    this.isLog = isLog && finite.length > 0;
    this.isCut = false;
    if (isRobust && finite.length >= 6) {
      const kept = near(finite);
      this.isCut = kept.length < finite.length;
      finite = kept;
    }
    this.low = Math.min(...finite);
    this.high = Math.max(...finite);
    if (!finite.length) [this.low, this.high] = [0, 1];
    if (this.low === this.high) { const by = Math.abs(this.low) * 0.1 || 1; this.low -= this.isLog ? this.low / 2 : by; this.high += by; }
  }

  share(value) {
    if (this.choices) {
      const at = this.choices.indexOf(text(value));
      return at < 0 ? null : (at + 0.5) / this.choices.length;
    }
    if (typeof value !== "number" || !Number.isFinite(value) || (this.isLog && value <= 0)) return null;
    const of = this.isLog ? Math.log : (each) => each, share = (of(value) - of(this.low)) / (of(this.high) - of(this.low));
    return this.isCut ? Math.max(0, Math.min(1, share)) : share;
  }

  isOutside(value) { return this.isCut && (value < this.low || value > this.high); }

  ticks(count) {
    if (this.choices) return this.choices.length <= 12 ? this.choices : this.choices.filter((_, i) => i % Math.ceil(this.choices.length / 12) === 0);
    if (this.isLog) {
      const found = [];
      for (let power = Math.floor(Math.log10(this.low)); power <= Math.ceil(Math.log10(this.high)); power++) {
        for (const factor of [1, 2, 5]) { const value = Number(`${factor}e${power}`); if (value >= this.low && value <= this.high) found.push(value); }
      }
      const powers = found.filter((value) => /^1(e|0*$|$)|^0\.0*1$/.test(String(value)));
      return found.length <= count ? found : powers.length > 1 ? powers : [this.low, this.high];
    }
    const raw = (this.high - this.low) / Math.max(1, count - 1), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.99), found = [];
    for (let value = Math.ceil(this.low / step) * step; value <= this.high + step * 1e-6; value += step) found.push(Number(value.toPrecision(10)));
    return found;
  }
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const numeric = (value) => (typeof value === "string" ? { NaN: NaN, Infinity, "-Infinity": -Infinity }[value] ?? NaN : value);
const clipped = (words, length) => (words.length > length ? `${words.slice(0, length - 1)}…` : words);

class Sweep {
  constructor(content, nameOf) {
    this.content = content;
    this.nameOf = nameOf;
    [[this.metric, this.direction]] = Object.entries(content.metrics);
    this.trials = content.trials.map((trial) => ({ ...trial, result: numeric(trial.results[this.metric] ?? NaN) }));
    this.compared = this.trials.filter((trial) => trial.state === "complete" && Number.isFinite(trial.result));
    const shares = this.compared.map((trial) => trial.result).sort((a, b) => a - b);
    [this.low, this.high] = [shares[0], shares[shares.length - 1]];
    this.best = new Set(content.best);
  }

  // 0 is the worst, 1 the best. Colour follows rank, so that a few bad trials do not make all others one colour.
  goodness(trial) {
    if (!this.ranks) {
      const order = [...this.compared].sort((a, b) => (this.direction === "max" ? a.result - b.result : b.result - a.result));
      this.ranks = new Map(order.map((each, i) => [each.number, order.length === 1 ? 1 : i / (order.length - 1)]));
    }
    return this.ranks.get(trial.number) ?? null;
  }

  says(trial) {
    const drawn = Object.entries(trial.values).map(([path, value]) => `${this.dimension(path)?.name || path} ${typeof value === "number" ? number(value) : text(value)}`);
    const end = Number.isFinite(trial.result) ? `${this.metric} ${number(trial.result)}` : trial.state;
    return `trial ${trial.number}, ${trial.state}: ${end}\n${drawn.join("\n")}`;
  }

  dimension(path) { return this.content.dimensions.find((each) => each.path === path); }

  axisOf(dimension) {
    return new Axis({
      values: this.trials.map((trial) => trial.values[dimension.path]).filter((value) => value !== undefined),
      isLog: dimension.kind.startsWith("log"),
      choices: dimension.kind === "choice" ? dimension.choices.filter((choice) => this.trials.some((trial) => text(trial.values[dimension.path]) === text(choice))) : null,
    });
  }

  axisOfMetric() { return new Axis({ values: this.compared.map((trial) => trial.result), isRobust: true }); }

  // A trial in a chart; a triangle points to one whose result is outside of it.
  mark(trial, x, y, metric) {
    const isBest = this.best.has(trial.number), style = { fill: isBest ? "var(--c1)" : "var(--c0)", opacity: isBest ? 1 : 0.6 }, title = svg("title", {}, this.says(trial));
    if (!metric.isOutside(trial.result)) return svg("circle", { cx: x, cy: y, r: isBest ? 4.5 : 3.2, style }, title);
    const tip = trial.result < metric.low ? 5 : -5;
    return svg("path", { d: `M${x - 4} ${y - tip}h8l-4 ${2 * tip}z`, style }, title);
  }

  importances() {
    const shares = Object.entries(this.content.importances || {}).sort((a, b) => b[1] - a[1]);
    if (!shares.length) return el("p", { class: "soft" }, this.content.importances_missing ? `No importances: ${this.content.importances_missing}.` : "No importances yet.");
    const most = shares[0][1] || 1, row = 26, wide = 380, left = 150;
    return svg("svg", { viewBox: `0 0 ${wide} ${shares.length * row}`, width: wide, role: "img", "aria-label": shares.map(([path, share]) => `${path} ${percent(share)}`).join(", ") },
      shares.map(([path, share], i) => [
        svg("text", { x: left - 10, y: i * row + 17, "text-anchor": "end" }, svg("title", {}, path), clipped(this.dimension(path)?.name || path, 22)),
        svg("rect", { x: left, y: i * row + 5, height: row - 10, width: Math.max(1.5, ((wide - left - 55) * share) / most), rx: 2, style: { fill: "var(--c0)" } }),
        svg("text", { x: left + Math.max(1.5, ((wide - left - 55) * share) / most) + 8, y: i * row + 17 }, percent(share)),
      ]));
  }

  parallel() {
    const { dimensions } = this.content, metric = this.axisOfMetric();
    const columns = [...dimensions.map((each) => ({ name: each.name, title: each.path, axis: this.axisOf(each), of: (trial) => trial.values[each.path] })),
      { name: this.metric, title: `${this.metric}, ${this.direction} is best`, axis: metric, of: (trial) => trial.result }];
    const wide = Math.max(1100, 170 + 150 * (columns.length - 1)), high = 330, top = 34, bottom = 12;
    const x = (i) => 75 + (i * (wide - 165)) / Math.max(1, columns.length - 1), y = (share) => top + (1 - share) * (high - top - bottom);
    const brushes = new Map(), lines = [], isDark = document.documentElement.dataset.theme === "dark";
    const order = [...this.compared].sort((a, b) => this.goodness(a) - this.goodness(b));
    for (const trial of order) {
      const shares = columns.map((column) => (column.of(trial) === undefined ? null : column.axis.share(column.of(trial))));
      const points = shares.map((share, i) => (share === null ? null : `${x(i)} ${y(share)}`)).filter(Boolean);
      const isBest = this.best.has(trial.number), good = this.goodness(trial);
      const line = svg("path", { d: `M${points.join("L")}`, fill: "none", "stroke-width": isBest ? 3 : 1.4, style: { stroke: isBest ? "var(--c1)" : shade(isDark ? good : 1 - good), opacity: isBest ? 1 : 0.35 + 0.45 * good } }, svg("title", {}, this.says(trial)));
      line.addEventListener("mouseenter", () => { line.setAttribute("stroke-width", 4); line.parentNode.append(line); });
      line.addEventListener("mouseleave", () => line.setAttribute("stroke-width", isBest ? 3 : 1.4));
      lines.push({ line, shares });
    }
    const count = el("p", { class: "small soft" });
    const follow = () => {
      let kept = 0;
      for (const { line, shares } of lines) {
        const isIn = [...brushes].every(([i, [low, up]]) => shares[i] !== null && shares[i] >= low && shares[i] <= up);
        line.style.display = isIn ? "" : "none";
        kept += isIn;
      }
      const how = brushes.size ? `${kept} of ${lines.length} trials go through the marked parts. Click an axis to take its mark away.` : "Drag along an axis to keep the trials that go through a part of it.";
      count.replaceChildren("The thick line is the best trial.", el("span", { class: "on-screen" }, ` ${how}`));
    };
    const picture = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, role: "img", "aria-label": `Parallel coordinates of ${lines.length} complete trials over ${columns.map((column) => column.name).join(", ")}` },
      svg("g", {}, lines.map((each) => each.line)), columns.map((column, i) => this.column(column, i, x(i), y, brushes, follow)));
    follow();
    return [el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Parallel coordinates" }, picture), count];
  }

  column(column, i, x, y, brushes, follow) {
    const mark = svg("rect", { x: x - 7, width: 14, y: 0, height: 0, rx: 3, style: { fill: "var(--accent)", opacity: 0.22 } });
    const ticks = column.axis.ticks(6).map((tick) => {
      const share = column.axis.share(tick);
      return share === null ? null : svg("text", { x: x + 8, y: y(share) + 4, style: { "paint-order": "stroke", stroke: "var(--card)", "stroke-width": "3px" } }, clipped(typeof tick === "number" ? number(tick, 3) : tick, 16));
    });
    const hit = svg("rect", { x: x - 14, y: y(1) - 4, width: 28, height: y(0) - y(1) + 8, fill: "transparent", style: { cursor: "ns-resize", "touch-action": "none" } });
    const share = (event) => {
      const box = hit.getBoundingClientRect();
      return 1 - Math.max(0, Math.min(1, (event.clientY - box.top) / box.height));
    };
    let from = null;
    hit.addEventListener("pointerdown", (event) => { from = share(event); hit.setPointerCapture(event.pointerId); });
    hit.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = share(event), [low, up] = [Math.min(from, to), Math.max(from, to)];
      if (up - low < 0.02) brushes.delete(i); else brushes.set(i, [low - 0.015, up + 0.015]);
      const shown = brushes.get(i);
      mark.setAttribute("y", shown ? y(up) : 0);
      mark.setAttribute("height", shown ? y(low) - y(up) : 0);
      follow();
    });
    hit.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(share(event) - from) < 0.02) { brushes.delete(i); mark.setAttribute("height", 0); follow(); }
      from = null;
    });
    return svg("g", {}, svg("line", { x1: x, x2: x, y1: y(0), y2: y(1), style: { stroke: "var(--faint)" } }), ticks, mark,
      svg("text", { x, y: 16, "text-anchor": "middle", style: { fill: "var(--ink)", "font-weight": 560, "font-size": "12px" } }, svg("title", {}, column.title), clipped(column.name, 20)), hit);
  }

  slices() {
    return this.content.dimensions.map((dimension) => el("div", { class: "card" }, el("h3", { title: dimension.path }, dimension.name), this.scatter(dimension)));
  }

  scatter(dimension) {
    const points = this.compared.filter((trial) => trial.values[dimension.path] !== undefined), axis = this.axisOf(dimension), metric = this.axisOfMetric();
    const frame = new Frame({ wide: 280, high: 190, x: axis, y: metric });
    const dots = points.map((trial, i) => {
      const across = axis.share(trial.values[dimension.path]), up = metric.share(trial.result);
      if (across === null || up === null) return null;
      const beside = axis.choices ? ((i * 7) % 11) - 5 : 0; // equal choices would hide each other
      return this.mark(trial, frame.left(across) + beside, frame.top(up), metric);
    });
    return frame.picture(`${this.metric} of ${points.length} trials by ${dimension.name}`, dots);
  }

  history() {
    const numbers = this.compared.map((trial) => trial.number);
    const x = new Axis({ values: [0, Math.max(1, ...this.trials.map((trial) => trial.number))] }), y = this.axisOfMetric(), frame = new Frame({ wide: 380, high: 230, x, y });
    const dots = this.compared.map((trial) => this.mark(trial, frame.left(x.share(trial.number)), frame.top(y.share(trial.result)), y));
    const steps = (this.content.best_so_far || []).map(([at, value]) => [at, numeric(value)]).filter(([, value]) => Number.isFinite(value));
    let path = "";
    steps.forEach(([at, value], i) => { path += i ? `H${frame.left(x.share(at))}V${frame.top(y.share(value))}` : `M${frame.left(x.share(at))} ${frame.top(y.share(value))}`; });
    if (steps.length && numbers.length) path += `H${frame.left(x.share(Math.max(...numbers)))}`;
    return frame.picture(`${this.metric} of each complete trial, and the best so far`, [path && svg("path", { d: path, fill: "none", "stroke-width": 2, style: { stroke: "var(--c1)" } }), dots], "trial");
  }

  courses() {
    const courses = this.trials.map((trial) => ({ trial, points: trial.reports.map(([step, value]) => [step, numeric(value)]).filter(([, value]) => Number.isFinite(value)) })).filter((each) => each.points.length);
    if (!courses.length) return null;
    const all = courses.flatMap((each) => each.points), x = new Axis({ values: all.map(([step]) => step) }), y = new Axis({ values: all.map(([, value]) => value) });
    const frame = new Frame({ wide: 380, high: 230, x, y });
    const lines = courses.map(({ trial, points }) => {
      const isPruned = trial.state === "pruned", isBest = this.best.has(trial.number), places = points.map(([step, value]) => [frame.left(x.share(step)), frame.top(Math.max(0, Math.min(1, y.share(value))))]);
      const [left, top] = places[places.length - 1], end = 4;
      return svg("g", {}, svg("title", {}, this.says(trial)),
        svg("path", { d: `M${places.map((place) => place.join(" ")).join("L")}`, fill: "none", "stroke-width": isBest ? 2.5 : 1.2, "stroke-dasharray": isPruned ? "4 3" : null, style: { stroke: isBest ? "var(--c1)" : isPruned ? "var(--faint)" : "var(--c0)", opacity: isBest || isPruned ? 1 : 0.55 } }),
        isPruned && svg("path", { d: `M${left - end} ${top - end}l${2 * end} ${2 * end}m0 ${-2 * end}l${-2 * end} ${2 * end}`, "stroke-width": 1.6, style: { stroke: "var(--bad)" } }));
    });
    return frame.picture(`${this.metric} over steps of ${courses.length} trials`, lines, "step");
  }
}

// Drops what lies far outside of the middle half, so that one bad trial does not flatten all others.
function near(values) {
  const sorted = [...values].sort((a, b) => a - b), at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
  const reach = 3 * (at(0.75) - at(0.25));
  return reach > 0 ? sorted.filter((value) => value >= at(0.25) - reach && value <= at(0.75) + reach) : sorted;
}

class Frame {
  constructor({ wide, high, x, y }) { Object.assign(this, { wide, high, x, y, space: { left: 52, right: 14, top: 10, bottom: 26 } }); }
  left(share) { return this.space.left + 8 + share * (this.wide - this.space.left - this.space.right - 16); }
  top(share) { return this.high - this.space.bottom - 6 - share * (this.high - this.space.top - this.space.bottom - 12); }

  picture(spoken, marks, xName) {
    const { left, right, top, bottom } = this.space, base = this.high - bottom;
    const across = this.x.ticks(this.wide > 300 ? 6 : 4).filter((tick) => typeof tick !== "number" || xName !== "trial" || Number.isInteger(tick)).filter((tick) => !xName || this.left(this.x.share(tick)) < this.wide - right - 36), up = this.y.ticks(5);
    return svg("svg", { viewBox: `0 0 ${this.wide} ${this.high}`, width: this.wide, role: "img", "aria-label": spoken },
      up.map((tick) => [svg("line", { class: "grid", x1: left, x2: this.wide - right, y1: this.top(this.y.share(tick)), y2: this.top(this.y.share(tick)) }),
        svg("text", { x: left - 8, y: this.top(this.y.share(tick)) + 4, "text-anchor": "end" }, typeof tick === "number" ? number(tick, 3) : clipped(tick, 10))]),
      svg("line", { class: "axis", x1: left, x2: this.wide - right, y1: base, y2: base }),
      across.map((tick) => svg("text", { x: this.left(this.x.share(tick)), y: base + 16, "text-anchor": "middle" }, typeof tick === "number" ? number(tick, 3) : clipped(tick, 12))),
      xName && svg("text", { x: this.wide - right, y: base + 16, "text-anchor": "end", style: { fill: "var(--faint)" } }, xName), marks);
  }
}
