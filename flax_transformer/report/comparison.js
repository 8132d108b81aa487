"use strict";
// The page of several runs; what it is made with is in widget.js.
const HUE = (group) => `--hue-${group % 8}`;
const dot = (group) => h("i", { style: `background: var(${HUE(group)})` });
const titled = ([split, name]) => `${split} ${nameOf(name)}${data.units[name] ? ", %" : ""}`;
const key = () => h("p", { className: "legend key" }, ...data.groups.map((name, at) => h("span", {}, dot(at), name)));
const named = (at) => h("td", { className: "named" }, h("span", { className: "legend" }, dot(at)), data.groups[at]);

function magnitude(value) {
  const power = Math.min(Math.max(Math.floor(Math.log10(Math.max(value, 1)) / 3), 0), 5);
  return power ? `${Number((value / 1000 ** power).toPrecision(3))} ${" kMGTP"[power]}` : String(Number(value.toPrecision(3)));
}
function time(seconds) {
  const round = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
  if (round < 60) return `${Number(seconds.toPrecision(2))} s`;
  return round < 3600 ? `${Math.floor(round / 60)}:${two(round % 60)} min` : `${Math.floor(round / 3600)}:${two(Math.floor((round % 3600) / 60))} h`;
}

// ---- scores ----------------------------------------------------------------------------------------------------
// Decimals of a column: two digits of its widest spread, or four of its values.
function decimals(scores) {
  const spreads = scores.filter((score) => score && score[1] > 0).map((score) => score[1]), values = scores.filter(Boolean).map((score) => Math.abs(score[0])).filter((value) => value > 0);
  const places = spreads.length ? 1 - Math.floor(Math.log10(Math.max(...spreads))) : values.length ? 3 - Math.floor(Math.log10(Math.max(...values))) : 0;
  return Math.max(0, Math.min(4, places));
}
const fixed = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
function scores() {
  const { metrics, rows } = data.scores, several = data.cost.some((cost) => cost.runs > 1);
  section("Scores", several ? "Runs that differ in nothing but the seed are one row: their mean, ± the sample standard deviation, of n runs." : "");
  const digits = metrics.map((_, m) => decimals(rows.map((row) => row[m])));
  const cell = (score, m, n) => {
    if (!score) return h("td", { className: "none", textContent: "missing" });
    const [mean, spread, count] = score;
    return h("td", { className: m ? "" : "first" }, fixed(mean, digits[m]), several ? h("small", { className: "spread", textContent: spread === null ? "" : `± ${fixed(spread, digits[m])}` }) : null,
      count < n ? h("small", { textContent: ` of ${count}` }) : null);
  };
  page.append(scroll(["", ...(several ? ["n"] : []), ...metrics.map(titled)], rows.map((row, at) => h("tr", {}, named(at),
    several ? h("td", { textContent: data.cost[at].runs }) : null, ...row.map((score, m) => cell(score, m, data.cost[at].runs))))));
}
function cost() {
  section("Cost", "FLOPs are those of the matrix products and convolutions of one step, counted by formula on its longest batch; speed is the median over the run; time includes evaluation and compilation, CPU time is that of all processors.");
  const units = [...new Set(data.cost.map((one) => one.unit).filter(Boolean))], unit = units.length === 1 ? units[0] : null;
  const columns = [["parameters", (c) => c.parameters?.toLocaleString("en")], ["steps", (c) => c.steps?.toLocaleString("en", { maximumFractionDigits: 0 })],
    [unit || "items", (c) => c.items === null ? null : magnitude(c.items) + (unit ? "" : ` ${c.unit}`)], ["FLOPs per step", (c) => c.flops && magnitude(c.flops)],
    ["FLOPs in total", (c) => c.flops && c.steps && magnitude(c.flops * c.steps)], [`${unit || "items"} per second`, (c) => c.speed && number(c.speed) + (unit ? "" : ` ${c.unit}`)],
    ["time", (c) => c.seconds && time(c.seconds)], ["CPU time", (c) => c.cpu && time(c.cpu)]];
  page.append(scroll(["", ...columns.map(([name]) => name)], data.cost.map((one, at) => h("tr", {}, named(at), ...columns.map(([, of]) => {
    const text = of(one);
    return text ? h("td", { textContent: text }) : h("td", { className: "none", textContent: "missing" });
  })))));
}

// ---- curves ----------------------------------------------------------------------------------------------------
const AXES = [["step", "steps", (v) => v.toLocaleString("en")], ["items", "items", magnitude], ["flops", "FLOPs", magnitude], ["seconds", "time", time], ["cpu", "CPU time", time]];
function comparedCurves() {
  const splits = ["validation", "train"];
  const all = splits.flatMap((split) => [...new Set(data.curves.flatMap((run) => Object.keys(run.splits[split].of)))].map((name) => [split, name]));
  const first = ([split, name]) => (name === data.metric[1] ? 0 : name === "loss" ? 1 : 2) + (split === "train" ? 3 : 0);
  const metrics = [...all].sort((a, b) => first(a) - first(b));
  const has = (axis) => data.curves.some((run) => splits.some((split) => run.splits[split].at[axis].some((value) => value !== null)));
  const axes = AXES.filter(([axis]) => has(axis));
  section("Curves", metrics.length ? "A line for each run; hover, touch, or use the arrow keys to read values." : "No numbers were written during training.");
  if (!metrics.length) return;
  const units = [...new Set(data.cost.map((one) => one.unit).filter(Boolean))];
  const label = ([axis, name]) => (axis === "items" && units.length === 1 ? units[0] : name);
  const grid = h("div", { className: "charts" }), without = h("p", { className: "lead" });
  let chosen = axes[0], cards = [];
  const fill = () => {
    cards.forEach((card) => card.forget());
    const last = Math.max(...data.curves.flatMap((run) => splits.flatMap((split) => run.splits[split].at[chosen[0]])));
    const axis = { name: label(chosen), last, spell: chosen[2], whole: chosen[0] === "step", together: true };
    cards = metrics.map((metric) => {
      const [split, name] = metric;
      const lines = data.curves.filter((run) => run.splits[split].of[name]).map((run) => ({
        name: run.name, color: HUE(run.group),
        points: run.splits[split].at[chosen[0]].map((x, i) => [x, run.splits[split].of[name][i]]).filter(([x]) => x !== null),
      })).filter((line) => line.points.some((point) => point[1] !== null));
      return lines.length ? chart(titled(metric), lines, axis) : null;
    }).filter(Boolean);
    const absent = data.curves.filter((run) => splits.every((split) => run.splits[split].at[chosen[0]].every((x) => x === null)));
    without.textContent = absent.length ? `Not recorded, so not drawn over ${axis.name}: ${absent.map((run) => run.name).join(", ")}.` : "";
    grid.replaceChildren(...cards);
    redraw();
  };
  page.append(h("div", { className: "bar" },
    group("what lies along", axes.map((axis) => [axis, `by ${label(axis)}`]), chosen, (axis) => { chosen = axis; fill(); }),
    group("vertical scale", [[false, "linear"], [true, "logarithmic"]], false, (log) => { chartState.log = log; redraw(); })), key(), without, grid);
  fill();
}

// ---- settings --------------------------------------------------------------------------------------------------
function differing() {
  section("Settings", data.settings.length ? "Those in which the runs differ, but for the seed; – is one that a run does not have." : "The runs differ in nothing but the seed.");
  if (!data.settings.length) return;
  const parts = new Map();
  for (const row of data.settings) {
    const part = row[0].split(".")[0];
    parts.set(part, [...(parts.get(part) || []), row]);
  }
  const card = h("div", { className: "card settings scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th"), ...data.groups.map((name, at) => h("th", {}, h("span", { className: "legend" }, dot(at)), name))))));
  for (const [part, rows] of parts) {
    const lines = rows.map(([path, values]) => h("tr", {}, h("td", { textContent: path === part && rows.length > 1 ? "kind" : path.slice(part.length + 1) || part }), ...values.map((value) => h("td", { textContent: value === null ? "–" : value }))));
    card.append(h("details", { open: rows.length <= 12 }, h("summary", {}, part + " ", h("small", { textContent: rows.length.toLocaleString("en") })), h("table", {}, h("tbody", {}, ...lines))));
  }
  page.append(card);
}

// ---- samples ---------------------------------------------------------------------------------------------------
function comparedSamples() {
  const several = data.cost.some((cost) => cost.runs > 1) ? " Of runs that differ in the seed it is the first." : "";
  section("Samples", data.samples ? `${data.samples.shown.length} of the ${data.samples.total.toLocaleString("en")} that the runs have in common, with the output of each.${several}` : "The runs have none in common.");
  if (!data.samples) return;
  const list = h("div", { className: "compared" }), more = h("button", { type: "button", className: "more" });
  const said = (row) => (row ? row.hypothesis ?? row.caption ?? null : null);
  const variety = (sample) => new Set(sample.rows.filter(Boolean).map(said)).size;
  let order = "given", limit = 6;
  const labels = [...new Set(data.samples.shown.flatMap((sample) => sample.rows.flatMap((row) => (row?.found ? [...row.objects, ...row.found].map((each) => each.label) : []))))].sort();
  const hue = (label) => HUES[labels.indexOf(label) % HUES.length];
  const told = (row, sample) => {
    if (!row) return h("div", { className: "none", textContent: "missing" });
    const text = said(row), score = row.score >= 0 && row.score <= 1 && row.score !== null ? ` ${row.score.toFixed(2)}` : "";
    const right = sample.target !== null && text === sample.target;
    return h("div", { className: right ? "same" : "" }, `${right ? "✓ " : ""}${text ?? "nothing"}`, h("small", { textContent: score }));
  };
  const show = (sample) => {
    const pictured = sample.rows.find((row) => row?.picture), boxes = sample.rows.some((row) => row?.size);
    const lines = [h("div", { className: "label", textContent: "source" }), h("div", { textContent: sample.source })];
    if (sample.target !== null) lines.push(h("div", { className: "label", textContent: "reference" }), h("div", { textContent: sample.target }));
    if (!boxes) sample.rows.forEach((row, at) => lines.push(h("div", { className: "label legend" }, dot(at), data.groups[at]), told(row, sample)));
    const text = h("div", { className: "sample" }, ...lines);
    if (boxes) return h("div", { className: "card" }, text, h("div", { className: "pictures" }, ...sample.rows.map((row, at) => h("div", {}, h("div", { className: "legend" }, dot(at), data.groups[at]), row ? pictureCard({ ...row, source: "" }, hue) : told(null)))));
    return h("div", { className: pictured ? "card pictured" : "card" }, pictured ? h("img", { src: pictured.picture, alt: sample.source, className: pictured.wide ? "wide" : "" }) : null, text);
  };
  const fill = () => {
    const chosen = order === "differ" ? [...data.samples.shown].sort((a, b) => variety(b) - variety(a)) : data.samples.shown;
    more.textContent = `Show all ${chosen.length}`;
    more.hidden = chosen.length <= limit;
    list.replaceChildren(...chosen.slice(0, limit).map(show));
  };
  more.onclick = () => { limit = Infinity; fill(); };
  if (data.samples.shown.length > 1) page.append(h("div", { className: "bar" }, group("order of samples", [["given", "in order"], ["differ", "largest differences first"]], order, (by) => { order = by; fill(); })));
  page.append(list, more);
  fill();
}

// ---- attention -------------------------------------------------------------------------------------------------
function comparedAttention() {
  if (!data.pictures.length) return;
  section("Attention", "Attention weights as each model reads the same sentence and writes its own translation; a row sums to 1. Colour is the square root of the weight.");
  const has = (view) => view && view.maps.length;
  const kinds = [...new Set(data.pictures.flatMap((one) => one.views.filter(has).flatMap((view) => view.maps.map((map) => map.name))))];
  const state = { picture: 0, kind: kinds.includes("cross") ? "cross" : kinds.at(-1), layers: {}, heads: {} };
  const bar = h("div", { className: "bar" }), views = h("div", { className: "views" });
  let draws = [];
  const view = (one, at) => {
    const head = h("h3", { className: "legend" }, dot(at), data.groups[at]), map = one?.maps.find((each) => each.name === state.kind);
    if (!map) return h("div", { className: "card" }, head, h("p", { className: "readout", textContent: `no ${state.kind} attention to show` }));
    unpack(map);
    const canvas = h("canvas", { role: "img", "aria-label": `${data.groups[at]}: ${map.rows.length} by ${map.columns.length} weights` });
    const layer = Math.min(state.layers[at] ?? map.layers - 1, map.layers - 1), which = Math.min(state.heads[at] ?? map.heads, map.heads);
    const box = h("div", { className: "map" }, canvas);
    const card = h("div", { className: "card" }, h("div", { className: "head" }, head), h("div", { className: "bar" },
      choice("layer", Array.from({ length: map.layers }, (_, i) => [i, i + 1]), layer, (i) => { state.layers[at] = Number(i); all(); }).element,
      choice("head", Array.from({ length: map.heads + 1 }, (_, i) => [i, i < map.heads ? i + 1 : "mean"]), which, (i) => { state.heads[at] = Number(i); all(); }).element), box);
    let layout = null;
    draws.push(() => { layout = drawMap(canvas, map, layer, which, Math.max(200, box.clientWidth - 4)); });
    canvas.onpointermove = (event) => {
      const place = canvas.getBoundingClientRect(), column = Math.floor((event.clientX - place.left - layout.left) / layout.cell), row = Math.floor((event.clientY - place.top - layout.top) / layout.cell);
      if (row < 0 || column < 0 || row >= layout.T || column >= layout.S) return hideTip();
      showTip(`${map.rows[row]} → ${map.columns[column]}\nweight ${map.at(layer, which, row, column).toFixed(4)}`, event.clientX, event.clientY);
    };
    canvas.onpointerleave = hideTip;
    return card;
  };
  const all = () => {
    draws = [];
    views.replaceChildren(...data.pictures[state.picture].views.map(view));
    draws.forEach((draw) => draw());
  };
  if (data.pictures.length > 1) bar.append(choice("sentence", data.pictures.map((one, i) => [i, one.source.length > 70 ? one.source.slice(0, 68) + "…" : one.source]), 0, (i) => { state.picture = Number(i); all(); }).element);
  if (kinds.length > 1) bar.append(group("kind of attention", kinds.map((kind) => [kind, kind]), state.kind, (kind) => { state.kind = kind; all(); }));
  bar.append(heatRamp());
  page.append(bar, views);
  redraws.push(() => draws.forEach((draw) => draw()));
  all();
}
function comparedSight() {
  if (!data.seen.length) return;
  section("Attention over images", "The mean of the last layer's heads: attention of the first token where there is one, else of all patches. Each image is coloured from its smallest to its largest weight.");
  page.append(h("div", { className: "compared" }, ...data.seen.map((one) => h("div", { className: "card" }, h("div", { className: "label", textContent: one.source }),
    h("div", { className: "sights" }, h("figure", {}, h("img", { src: one.views.find(Boolean).plain, alt: one.source }), h("figcaption", { textContent: "image" })),
      ...one.views.map((view, at) => h("figure", {}, view ? h("img", { src: view.picture, alt: data.groups[at] }) : h("div", { className: "none", textContent: "missing" }), h("figcaption", { className: "legend" }, dot(at), data.groups[at], view ? h("div", { textContent: view.extent }) : null))))))));
}

page.replaceChildren();
for (const part of [head, scores, comparedCurves, cost, comparedSamples, comparedAttention, comparedSight, differing]) part();
page.append(h("footer", { textContent: "Written by flax_transformer. This page needs no network." }));
redraws.forEach((draw) => draw());
