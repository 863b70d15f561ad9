// Curves over steps, epochs or time: uPlot has the axes, the cursor and the zoom; lines are drawn here, because each run
// has points of its own.
"use strict";

class Curves {
  // `options`: what all charts share; `slots`: run -> colour of those that are highlighted; `runs`: what the page knows.
  constructor(runs, options, slots) {
    Object.assign(this, { runs, options, slots, charts: [], range: null, isSharing: false });
  }

  show(container, described) {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        entry.target.chart.draw();
      }
    }, { rootMargin: "600px" });
    const cards = described.map((each) => {
      const chart = new Chart(this, each);
      this.charts.push(chart);
      chart.card.chart = chart;
      seen.observe(chart.card);
      return chart.card;
    });
    container.replaceChildren(...cards);
  }

  drawAll() { this.charts.forEach((chart) => chart.draw()); }
  refresh() { this.charts.forEach((chart) => chart.refresh()); }
  resize() { this.charts.forEach((chart) => chart.resize()); }

  setRange(range) {
    if (this.isSharing) return;
    this.range = range;
    this.refresh();
    this.options.onRange(range);
  }

  xOf(run, steps) {
    const { axis } = this.options, about = this.runs[run];
    if (axis === "step") return steps;
    if (axis === "epoch") return about.epoch_steps ? steps.map((step) => step / about.epoch_steps) : null;
    return about.clock ? steps.map((step) => interpolated(about.clock, step)) : null;
  }
}

function interpolated([steps, seconds], step) {
  let low = 0, high = steps.length - 1;
  if (step <= steps[0]) return seconds[0];
  if (step >= steps[high]) return seconds[high];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  return seconds[low] + ((seconds[high] - seconds[low]) * (step - steps[low])) / (steps[high] - steps[low]);
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
    this.shared = shared;
    this.described = described;
    this.plot = null;
    this.tip = el("div", { class: "tip", hidden: true });
    this.place = el("div", { class: "plot", tabindex: 0, role: "img", on: { keydown: (event) => this.key(event), blur: () => this.leave() } });
    this.about = el("span");
    this.card = el("div", { class: "card" }, el("h3", {}, described.name, this.about), this.place, this.tip);
  }

  destroy() { if (this.plot) this.plot.destroy(); this.plot = null; }

  lines() {
    const { options, slots } = this.shared, found = [];
    for (const curve of this.described.curves) {
      if (options.split !== "both" && curve.split !== options.split && this.hasSplit(options.split)) continue;
      const slot = slots.get(curve.run);
      if (options.hidden.has(curve.run) || (slot === undefined && !options.others)) continue;
      const x = this.shared.xOf(curve.run, curve.x);
      if (x) found.push({ curve, slot, x, raw: curve.y, y: smoothed(curve.y, options.smoothing), isTraining: curve.split === "train" });
    }
    return found.sort((a, b) => (b.slot ?? 1e6) - (a.slot ?? 1e6));
  }

  hasSplit(split) { return this.described.curves.some((curve) => curve.split === split); }

  bounds() {
    const { options, range } = this.shared;
    const x = [Infinity, -Infinity], y = [Infinity, -Infinity];
    const widen = (pair, value) => { if (value < pair[0]) pair[0] = value; if (value > pair[1]) pair[1] = value; };
    for (const line of this.drawn) for (const value of line.x) if (!options.logX || value > 0) widen(x, value);
    const [from, to] = range || x;
    for (const line of this.drawn) {
      for (let i = 0; i < line.x.length; i++) {
        const value = line.y[i];
        if (value === null || line.x[i] < from || line.x[i] > to || (options.logY && value <= 0)) continue;
        widen(y, value);
      }
    }
    return { x: this.usable(range || x, options.logX), y: this.padded(this.usable(y, options.logY)) };
  }

  usable([low, high], isLog) {
    if (!(low <= high)) return isLog ? [1, 10] : [0, 1];
    if (low === high) return isLog ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
    return [low, high];
  }

  padded([low, high]) {
    if (this.shared.options.logY) return [low / 1.1, high * 1.1];
    const space = (high - low) * 0.05;
    return [low - space, high + space];
  }

  draw() {
    this.destroy();
    this.drawn = this.lines();
    this.limits = this.bounds();
    this.place.setAttribute("aria-label", this.spoken());
    const { options } = this.shared, axis = { stroke: css("--faint"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: Math.max(220, this.place.clientWidth), height: 230, legend: { show: false }, padding: [8, 20, 0, 0],
      scales: {
        x: { time: false, distr: options.logX ? 3 : 1, range: () => this.limits.x },
        y: { distr: options.logY ? 3 : 1, range: () => this.limits.y },
      },
      series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
      axes: [
        { ...axis, size: 30, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.tick(tick))) },
        { ...axis, size: 58, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 3))) },
      ],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, sync: { key: "curves" } },
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => this.select(plot)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.shared.setRange(null))],
      },
    }, [this.limits.x, [null, null]], this.place);
    this.about.textContent = this.caption();
  }

  tick(value) { return this.shared.options.axis === "time" ? duration(value) : number(value, 3); }

  caption() {
    if (!this.drawn.length) return "nothing to draw with these settings";
    const splits = new Set(this.drawn.map((line) => line.curve.split)), words = { train: "training", validation: "validation" };
    if (splits.size === 2 && splits.has("train") && splits.has("validation")) return "validation, training thin";
    return [...splits].map((split) => words[split] || split).join(", ");
  }

  spoken() {
    const last = this.drawn.filter((line) => line.slot !== undefined).slice(-6).reverse()
      .map((line) => `${this.shared.runs[line.curve.run].name} ${line.curve.split} ends at ${number(line.raw.filter((v) => v !== null).at(-1))}`);
    return `${this.described.name}: ${this.drawn.length} curves. ${last.join("; ")}. Arrow keys move the cursor, plus and minus zoom, Escape shows all.`;
  }

  refresh() {
    if (!this.plot) return;
    this.drawn = this.lines();
    this.limits = this.bounds();
    this.plot.setData([this.limits.x, [null, null]]);
    this.about.textContent = this.caption();
  }

  resize() { if (this.plot) this.plot.setSize({ width: Math.max(220, this.place.clientWidth), height: 230 }); }

  paint(plot) {
    const { ctx, bbox } = plot, ratio = uPlot.pxRatio, { options } = this.shared;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 4 * ratio, bbox.top - 4 * ratio, bbox.width + 8 * ratio, bbox.height + 8 * ratio);
    ctx.clip();
    ctx.lineJoin = "round";
    const numOthers = this.drawn.filter((line) => line.slot === undefined).length, grey = Math.max(0.07, Math.min(0.4, 20 / numOthers));
    for (const line of this.drawn) {
      const isOther = line.slot === undefined;
      ctx.strokeStyle = ctx.fillStyle = isOther ? css("--others") : colourOf(line.slot);
      ctx.setLineDash(isOther ? [] : dashOf(line.slot).map((length) => length * ratio));
      const isThin = line.isTraining && options.split === "both" && this.hasSplit("validation");
      if (options.smoothing && !isOther) this.trace(plot, line.x, line.raw, { alpha: 0.18, width: ratio });
      this.trace(plot, line.x, line.y, { alpha: isOther ? grey : isThin ? 0.6 : 1, width: (isOther ? 0.8 : isThin ? 1.1 : 2) * ratio, dots: !isOther && !isThin });
    }
    ctx.restore();
  }

  trace(plot, xs, ys, { alpha, width, dots }) {
    const { ctx } = plot, { options } = this.shared, path = new Path2D();
    let isDown = false, count = 0, dot = null;
    for (let i = 0; i < xs.length; i++) {
      if (ys[i] === null || (options.logY && ys[i] <= 0) || (options.logX && xs[i] <= 0)) { isDown = false; continue; }
      const x = plot.valToPos(xs[i], "x", true), y = plot.valToPos(ys[i], "y", true);
      if (isDown) path.lineTo(x, y); else path.moveTo(x, y);
      isDown = true;
      count += 1;
      dot = [x, y];
    }
    ctx.globalAlpha = alpha;
    ctx.lineWidth = width;
    ctx.stroke(path);
    if (dot && (count === 1 || dots)) {
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.arc(dot[0], dot[1], (count === 1 ? 3 : 2.2) * uPlot.pxRatio, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  }

  select(plot) {
    if (plot.select.width < 4) return;
    const range = [plot.select.left, plot.select.left + plot.select.width].map((left) => plot.posToVal(left, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.shared.setRange(range);
  }

  point(plot) {
    const { left } = plot.cursor, isHere = plot.over.matches(":hover") || document.activeElement === this.place;
    if (!isHere || left === null || left < 0) { this.tip.hidden = true; return; }
    const at = plot.posToVal(left, "x"), rows = [];
    for (const line of this.drawn) {
      if (line.slot === undefined) continue;
      const i = nearest(line.x, at);
      if (line.y[i] === null) continue;
      rows.push({ line, value: line.y[i], x: line.x[i] });
    }
    if (!rows.length) { this.tip.hidden = true; return; }
    rows.reverse();
    const shown = rows.slice(0, 10), { runs, options } = this.shared;
    const both = new Set(rows.map((row) => row.line.curve.split)).size > 1;
    this.tip.replaceChildren(
      el("div", { class: "faint" }, `${{ step: "step", epoch: "epoch", time: "after" }[options.axis]} ${this.tick(options.axis === "step" ? Math.round(at) : at)}`),
      ...shown.map(({ line, value }) => el("div", {}, swatch(line.slot),
        el("span", {}, runs[line.curve.run].name, both ? ` ${{ train: "training", validation: "validation" }[line.curve.split] || line.curve.split}` : ""), el("b", {}, number(value)))),
      rows.length > shown.length ? el("div", { class: "faint" }, `and ${rows.length - shown.length} more`) : "");
    this.tip.hidden = false;
    const width = this.card.clientWidth, x = plot.over.offsetLeft + this.place.offsetLeft + left;
    this.tip.style.left = x > width / 2 ? "" : `${x + 14}px`;
    this.tip.style.right = x > width / 2 ? `${width - x + 14}px` : "";
    this.tip.style.top = "3.2rem";
  }

  leave() { this.tip.hidden = true; if (this.plot) this.plot.setCursor({ left: -10, top: -10 }); }

  key(event) {
    const { plot } = this;
    if (!plot) return;
    const width = plot.over.clientWidth, left = plot.cursor.left >= 0 ? plot.cursor.left : width / 2;
    const moves = { ArrowLeft: -1, ArrowRight: 1 }, zooms = { "+": 0.5, "=": 0.5, "-": 2 };
    if (event.key in moves) {
      const step = (event.shiftKey ? 0.1 : 0.01) * width;
      plot.setCursor({ left: Math.max(0, Math.min(width, left + moves[event.key] * step)), top: 40 });
    } else if (event.key in zooms) {
      const [from, to] = this.limits.x, at = plot.posToVal(left, "x"), zoom = zooms[event.key];
      this.shared.setRange([at - (at - from) * zoom, at + (to - at) * zoom]);
    } else if (event.key === "Escape") this.shared.setRange(null);
    else return;
    event.preventDefault();
  }
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle; else high = middle;
  }
  return Math.abs(sorted[high] - value) < Math.abs(value - sorted[low]) ? high : low;
}
