// Curves over steps: uPlot has the axes, the cursor and the zoom; lines are drawn here, because each run has
// points of its own.
"use strict";

// All charts of the page. `options`: split, smoothing; `slots`: run -> colour; `runs`: what the page knows.
class Curves {
  constructor(runs, options, slots) { Object.assign(this, { runs, options, slots, range: null }); }

  show(container, described) {
    const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      seen.unobserve(entry.target);
      this.charts.find((chart) => chart.card === entry.target).draw();
    }), { rootMargin: "600px" });
    this.charts = described.map((chart) => new Chart(this, chart));
    container.replaceChildren(...this.charts.map((chart) => chart.card));
    this.charts.forEach((chart) => seen.observe(chart.card));
  }

  draw() { this.charts.forEach((chart) => chart.draw()); }

  setRange(range) {
    this.range = range;
    this.charts.forEach((chart) => chart.plot && chart.draw());
  }
}

function smoothed(values, weight) {
  if (!weight) return values;
  let last = 0, sum = 0;
  return values.map((value) => {
    if (value === null) return null;
    last = last * weight + (1 - weight) * value;
    sum = sum * weight + (1 - weight);
    return last / sum;
  });
}

class Chart {
  constructor(shared, described) {
    Object.assign(this, { shared, described, plot: null });
    this.tip = el("div", { class: "tip", hidden: true });
    this.plotBox = el("div", { class: "plot", role: "img", "aria-label": described.name });
    this.about = el("span");
    this.card = el("div", { class: "card" }, el("h3", {}, described.name, this.about), this.plotBox, this.tip);
    new ResizeObserver(() => this.plot && this.plot.width !== this.width && this.draw()).observe(this.plotBox);
  }

  get width() { return Math.max(220, this.plotBox.clientWidth); }

  // The lines that the settings leave, those in colour last, so that they are above the others.
  lines() {
    const { options, slots } = this.shared, lines = [];
    const hasSplit = this.described.curves.some((curve) => curve.split === options.split);
    for (const curve of this.described.curves) {
      if (hasSplit && curve.split !== options.split) continue;
      lines.push({ curve, x: curve.x, slot: slots.get(curve.run), y: smoothed(curve.y, options.smoothing) });
    }
    return lines.sort((a, b) => (b.slot ?? 1e6) - (a.slot ?? 1e6));
  }

  limits() {
    const { range } = this.shared, x = [Infinity, -Infinity], y = [Infinity, -Infinity];
    const widen = (pair, value) => { pair[0] = Math.min(pair[0], value); pair[1] = Math.max(pair[1], value); };
    for (const line of this.drawn) if (line.x.length) { widen(x, line.x[0]); widen(x, line.x.at(-1)); }
    const [from, to] = range || x;
    for (const line of this.drawn) line.y.forEach((value, i) => {
      if (value !== null && line.x[i] >= from && line.x[i] <= to) widen(y, value);
    });
    const space = (y[1] - y[0]) * 0.05 || Math.abs(y[0]) * 0.05 || 1;
    return { x: from < to ? [from, to] : [from - 1, from + 1], y: Number.isFinite(y[0]) ? [y[0] - space, y[1] + space] : [0, 1] };
  }

  draw() {
    if (this.plot) this.plot.destroy();
    this.drawn = this.lines();
    const limits = this.limits(), ticks = (_, values) => values.map((value) => (value === null ? "" : number(value)));
    const axis = { stroke: css("--faint"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: this.width, height: 230, legend: { show: false }, padding: [8, 20, 0, 0],
      scales: { x: { time: false, range: () => limits.x }, y: { range: () => limits.y } },
      series: [{}, { stroke: "transparent", points: { show: false } }],
      axes: [{ ...axis, size: 30, values: ticks }, { ...axis, size: 58, values: ticks }],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: { key: "curves" } },
      hooks: {
        draw: [(plot) => this.paint(plot)], setCursor: [(plot) => this.point(plot)], setSelect: [(plot) => this.select(plot)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.shared.setRange(null))],
      },
    }, [limits.x, [null, null]], this.plotBox);
    this.about.textContent = [...new Set(this.drawn.map((line) => line.curve.split))].join(", ");
  }

  nameOf(line) {
    const isMixed = new Set(this.drawn.map((other) => other.curve.split)).size > 1;
    return `${this.shared.runs[line.curve.run].name}${isMixed ? ` ${line.curve.split}` : ""}`;
  }

  paint(plot) {
    const { ctx, bbox } = plot, ratio = uPlot.pxRatio, numOthers = this.drawn.filter((line) => line.slot === undefined).length;
    const isMixed = this.drawn.some((line) => line.curve.split !== "train");
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 4 * ratio, bbox.top - 4 * ratio, bbox.width + 8 * ratio, bbox.height + 8 * ratio);
    ctx.clip();
    ctx.lineJoin = "round";
    for (const line of this.drawn) {
      const isOther = line.slot === undefined, isThin = isMixed && line.curve.split === "train";
      ctx.strokeStyle = ctx.fillStyle = css(isOther ? "--others" : `--c${line.slot % NUM_COLOURS}`);
      ctx.setLineDash(isOther ? [] : dashOf(line.slot).map((length) => length * ratio));
      ctx.globalAlpha = isOther ? Math.max(0.07, Math.min(0.4, 20 / numOthers)) : isThin ? 0.6 : 1;
      ctx.lineWidth = (isOther ? 0.8 : isThin ? 1.1 : 2) * ratio;
      this.trace(plot, line.x, line.y, isOther || isThin ? 0 : 2.2 * ratio);
    }
    ctx.restore();
  }

  // A line with a gap where a value is missing, and a dot at its end; a single point is a dot.
  trace(plot, xs, ys, dot) {
    const { ctx } = plot, path = new Path2D();
    let isDown = false, count = 0, end = null;
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === null) { isDown = false; continue; }
      end = [plot.valToPos(xs[i], "x", true), plot.valToPos(ys[i], "y", true)];
      if (isDown) path.lineTo(...end); else path.moveTo(...end);
      isDown = true;
      count += 1;
    }
    ctx.stroke(path);
    if (!end || (count > 1 && !dot)) return;
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.arc(...end, count > 1 ? dot : 3 * uPlot.pxRatio, 0, 7);
    ctx.fill();
  }

  select(plot) {
    const { left, width } = plot.select;
    const range = [left, left + width].map((edge) => plot.posToVal(edge, "x"));
    if (width >= 4) queueMicrotask(() => this.shared.setRange(range)); // once uPlot has let go of the mouse
  }

  // The last values up to the cursor, of the lines in colour.
  point(plot) {
    const { left } = plot.cursor, at = plot.posToVal(left, "x"), rows = [];
    for (const line of plot.over.matches(":hover") && left >= 0 ? this.drawn : []) {
      const i = line.x.findLastIndex((step) => step <= at);
      if (line.slot !== undefined && i >= 0 && line.y[i] !== null) rows.unshift(el("div", {}, swatch(line.slot), el("span", {}, this.nameOf(line)), el("b", {}, number(line.y[i]))));
    }
    this.tip.hidden = !rows.length;
    this.tip.replaceChildren(el("div", { class: "faint" }, `step ${number(Math.round(at))}`), ...rows);
    this.tip.classList.toggle("at-left", left > plot.over.clientWidth / 2);
  }
}
