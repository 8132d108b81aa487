"use strict";
// Every text on the page is set by textContent: what a user wrote can never become markup.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page"), tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";
const NAMES = { loss: "loss", learning_rate: "learning rate", gradient_norm: "gradient norm",
  bleu: "BLEU", chrf: "chrF", tokenized_bleu: "tokenised BLEU", exact_match: "exact match in %", sentences_per_second: "sentences per second" };
const nameOf = (metric) => NAMES[metric] || metric.replaceAll("_", " ");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const redraws = [];
let frame = 0;
const redraw = () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => redraws.forEach((draw) => draw())); };
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "style" || name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
function s(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function number(value) {
  if (typeof value !== "number") return "not a number";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), wide = document.documentElement.clientWidth;
  tip.style.left = Math.max(6, Math.min(x + 14, wide - box.width - 6)) + "px";
  tip.style.top = (y - box.height - 12 < 6 ? y + 20 : y - box.height - 12) + "px";
}
const hideTip = () => { tip.hidden = true; };
addEventListener("scroll", hideTip, { passive: true, capture: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

function section(title, lead) {
  page.append(h("h2", { id: title.toLowerCase(), textContent: title }));
  if (lead) page.append(h("p", { className: "lead", textContent: lead }));
}
function choice(label, options, value, act) {
  const box = h("select", { onchange: () => act(box.value) });
  for (const [key, text] of options) box.append(h("option", { value: key, textContent: text, selected: String(key) === String(value) }));
  return { element: h("label", {}, label, box), set: (key) => { box.value = key; } };
}
function group(label, options, value, act) {
  const buttons = options.map(([key, text]) => h("button", { type: "button", textContent: text, onclick: () => { set(key); act(key); } }));
  const set = (key) => buttons.forEach((button, i) => button.setAttribute("aria-pressed", options[i][0] === key));
  set(value);
  return h("div", { className: "group", role: "group", "aria-label": label }, ...buttons);
}

// ---- head ------------------------------------------------------------------------------------------------------
function head() {
  document.title = data.title;
  page.append(h("h1", { textContent: data.title }));
  page.append(h("p", { className: "facts" }, ...data.facts.map(([name, value]) => h("span", {}, name + " ", h("b", { textContent: value })))));
  if (data.notes.length) page.append(h("ul", { className: "notes" }, ...data.notes.map((note) => h("li", { textContent: note }))));
  const test = (data.series || {}).test;
  if (!test) return;
  const names = Object.keys(test).filter((name) => name !== "step");
  names.sort((a, b) => (b === data.headline) - (a === data.headline));
  const tiles = names.map((name) => h("div", { className: name === data.headline ? "card first" : "card" },
    h("div", { className: "value", textContent: number(test[name].at(-1)) }), h("div", { className: "name", textContent: nameOf(name) })));
  page.append(h("h2", { textContent: "Test" }), h("div", { className: "tiles" }, ...tiles));
}

// ---- curves ----------------------------------------------------------------------------------------------------
function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999), list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) list.push(i * step);
  return list;
}
function logTicks(low, high) {
  const list = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of [1, 2, 5]) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) list.push(m * 10 ** p);
  return list.length > 6 ? list.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-6) : list.length > 1 ? list : [low, high];
}
const chartState = { log: false, step: null, draws: [] };
function chart(metric, lines, last) {
  const legend = h("div", { className: "legend" });
  const svg = s("svg", { tabindex: 0, role: "img", "aria-label": `${nameOf(metric)} by step; arrow keys read the values` });
  const card = h("div", { className: "card chart" }, h("div", { className: "head" }, h("h3", { textContent: nameOf(metric) }), legend), svg);
  const points = lines.flatMap((line) => line.points.filter((point) => point[1] !== null));
  const steps = [...new Set(points.map((point) => point[0]))].sort((a, b) => a - b);
  const nearest = (step) => steps.reduce((best, now) => (Math.abs(now - step) < Math.abs(best - step) ? now : best), steps[0]);
  let scaleX = null, width = 0;
  const left = 52, right = 10, top = 10, bottom = 24, height = 190;

  function values(step) {
    return lines.map((line) => [line, line.points.find((point) => point[0] === step)]).filter(([, point]) => point);
  }
  function mark() {
    svg.querySelectorAll(".mark").forEach((element) => element.remove());
    const step = chartState.step === null ? null : nearest(chartState.step);
    legend.replaceChildren(...lines.map((line) => {
      const known = line.points.filter((point) => point[1] !== null && (step === null || point[0] <= step));
      const at = known.length ? known.at(-1) : null;
      return h("span", { title: at ? `step ${at[0]}` : "" }, h("i", { style: `background: var(${line.color})` }), `${line.name} `, at ? number(at[1]) : "–");
    }));
    if (step === null) return;
    svg.append(s("line", { class: "mark cursor", x1: scaleX(step), x2: scaleX(step), y1: top, y2: height - bottom }));
    for (const [line, point] of values(step))
      if (point[1] !== null) svg.append(s("circle", { class: "mark", cx: scaleX(step), cy: line.y(point[1]), r: 4, style: `fill: var(${line.color}); stroke: var(--card)` }));
  }
  function draw() {
    width = svg.clientWidth || 330;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const log = chartState.log && points.every((point) => point[1] > 0);
    let low = Math.min(...points.map((point) => point[1])), high = Math.max(...points.map((point) => point[1]));
    if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; }
    const first = Math.min(...steps, last), pad = (high - low) * 0.04;
    if (!log) { low = low >= 0 && low - pad < 0 ? 0 : low - pad; high += pad; }
    const f = log ? Math.log : (value) => value;
    scaleX = (step) => left + ((step - first) / (last - first || 1)) * (width - left - right);
    const y = (value) => height - bottom - ((f(value) - f(low)) / (f(high) - f(low))) * (height - top - bottom);
    for (const value of log ? logTicks(low, high) : ticks(low, high, 4)) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      svg.append(s("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, number(value)));
    }
    for (const step of ticks(first, last, Math.max(3, Math.floor(width / 110))).filter(Number.isInteger))
      svg.append(s("text", { x: scaleX(step), y: height - 7, "text-anchor": scaleX(step) > width - 30 ? "end" : "middle" }, step.toLocaleString("en")));
    for (const line of lines) {
      line.y = y;
      let path = "", pen = "M";
      for (const [step, value] of line.points) {
        if (value === null) { pen = "M"; continue; }
        path += `${pen}${scaleX(step).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
      svg.append(s("path", { d: path, style: `stroke: var(${line.color})` }));
      const alone = line.points.filter(([, value], i) => value !== null && [i - 1, i + 1].every((j) => !line.points[j] || line.points[j][1] === null));
      for (const [step, value] of alone) svg.append(s("circle", { cx: scaleX(step), cy: y(value), r: 2.5, style: `fill: var(${line.color})` }));
    }
    mark();
  }
  function point(step) {
    chartState.step = step;
    chartState.draws.forEach((m) => m());
    const at = nearest(step), box = svg.getBoundingClientRect();
    const text = values(at).map(([line, p]) => `${line.name} ${number(p[1])}`).join("\n");
    showTip(`step ${at.toLocaleString("en")}\n${text}`, box.left + scaleX(at), box.top + 40);
  }
  const leave = () => { chartState.step = null; chartState.draws.forEach((m) => m()); hideTip(); };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    point(steps.reduce((best, now) => (Math.abs(scaleX(now) - x) < Math.abs(scaleX(best) - x) ? now : best), steps[0]));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = chartState.step === null ? (move > 0 ? -1 : steps.length) : steps.indexOf(nearest(chartState.step));
    point(steps[Math.max(0, Math.min(steps.length - 1, now + move))]);
  });
  chartState.draws.push(mark);
  redraws.push(draw);
  return card;
}
function curves() {
  if (!data.series) return;
  const order = ["loss", "learning_rate", "gradient_norm"], splits = Object.keys(data.series).filter((split) => split !== "test");
  const metrics = [...new Set([...order, ...splits.flatMap((split) => Object.keys(data.series[split]))])].filter((name) => name !== "step");
  const last = Math.max(0, ...splits.flatMap((split) => data.series[split].step));
  const cards = metrics.map((metric) => {
    const lines = splits.filter((split) => data.series[split][metric]).map((split) => ({
      name: split, color: split === "validation" ? "--validation" : split === "train" ? "--train" : "--test",
      points: data.series[split].step.map((step, i) => [step, data.series[split][metric][i]]),
    })).filter((line) => line.points.some((point) => point[1] !== null));
    return lines.length ? chart(metric, lines, last) : null;
  }).filter(Boolean);
  section("Curves", cards.length ? "Hover, touch, or use the arrow keys to read values." : "No numbers have been written yet.");
  if (!cards.length) return;
  page.append(h("div", { className: "bar" }, group("vertical scale", [[false, "linear"], [true, "logarithmic"]], false, (log) => { chartState.log = log; redraw(); })));
  page.append(h("div", { className: "charts" }, ...cards));
}

// ---- metric table ----------------------------------------------------------------------------------------------
function metrics() {
  if (!data.series || !Object.keys(data.series).length) return;
  section("Metrics");
  const splits = ["train", "validation", "test", ...Object.keys(data.series)].filter((split, i, all) => data.series[split] && all.indexOf(split) === i);
  const names = [...new Set(splits.flatMap((split) => Object.keys(data.series[split])))].filter((name) => name !== "step");
  const cell = (value, step) => h("td", {}, value === null ? "–" : number(value), value === null || step === null ? null : h("small", { textContent: ` at ${step.toLocaleString("en")}` }));
  const rows = names.map((name) => h("tr", {}, h("td", { textContent: nameOf(name) }), ...splits.flatMap((split) => {
    const column = data.series[split][name], steps = data.series[split].step;
    const known = column ? column.map((value, i) => [value, steps[i]]).filter(([value]) => value !== null) : [];
    const last = known.length ? cell(known.at(-1)[0], split === "test" ? null : known.at(-1)[1]) : h("td", { textContent: "–" });
    if (split !== "validation") return [last];
    const lower = /loss|perplexity|error/.test(name);
    const best = known.reduce((a, b) => (a === null || (lower ? b[0] < a[0] : b[0] > a[0]) ? b : a), null);
    return [last, best ? cell(best[0], best[1]) : h("td", { textContent: "–" })];
  })));
  const heads = splits.flatMap((split) => (split === "validation" ? ["validation, last", "validation, best"] : [split === "test" ? "test" : `${split}, last`]));
  page.append(h("div", { className: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { textContent: "metric" }), ...heads.map((text) => h("th", { textContent: text })))), h("tbody", {}, ...rows))));
}

// ---- profile ---------------------------------------------------------------------------------------------------
function profile() {
  if (!data.profile) return;
  section("Profile", "Time of the operations in the steps that were traced, on all threads and devices together; derivatives are their module's.");
  const share = (value) => h("td", { textContent: `${(100 * value).toFixed(1)} %` });
  const table = (heads, rows) => page.append(h("div", { className: "card scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { textContent: text })))), h("tbody", {}, ...rows))));
  table(["module", "share"], data.profile.modules.map(([module, part]) => h("tr", {}, h("td", { textContent: module }), share(part))));
  table(["operation", "module", "ms", "share", "times"], data.profile.operations.map(([module, name, seconds, part, count]) =>
    h("tr", {}, h("td", { textContent: name }), h("td", { textContent: module }), h("td", { textContent: number(1000 * seconds) }), share(part), h("td", { textContent: count.toLocaleString("en") }))));
  if (data.profile.more) page.append(h("p", { className: "lead", textContent: `${data.profile.more.toLocaleString("en")} shorter ones are not shown.` }));
}

// ---- configuration ---------------------------------------------------------------------------------------------
function tree(value) {
  const plain = h("dl"), inner = [];
  for (const [name, item] of Object.entries(value)) {
    if (name === "type") continue;
    const nested = item !== null && typeof item === "object" && !Array.isArray(item);
    if (nested && item.function === undefined) {
      const kind = String(item.type || "").split(":").at(-1);
      inner.push(h("details", {}, h("summary", {}, name + " ", h("small", { textContent: kind })), tree(item)));
    } else {
      const text = nested ? String(item.function).split(":").at(-1) : item === null ? "none" : Array.isArray(item) ? item.map((one) => (typeof one === "object" ? JSON.stringify(one) : String(one))).join(", ") || "none" : String(item);
      plain.append(h("dt", { textContent: name }), h("dd", { textContent: text }));
    }
  }
  return h("div", {}, plain.children.length ? plain : null, ...inner);
}
function configuration() {
  if (!data.config) return;
  section("Configuration");
  const body = tree(data.config), set = (open) => body.querySelectorAll("details").forEach((element) => { element.open = open; });
  page.append(h("div", { className: "bar" }, h("div", { className: "group" },
    h("button", { type: "button", textContent: "open all", onclick: () => set(true) }), h("button", { type: "button", textContent: "close all", onclick: () => set(false) }))));
  page.append(h("div", { className: "card" }, body));
}

page.replaceChildren();
for (const part of [head, curves, samples, images, confusion, attention, imageAttention, metrics, profile, configuration]) part();
page.append(h("footer", { textContent: "Written by flax_transformer. This page needs no network." }));
redraws.forEach((draw) => draw());
