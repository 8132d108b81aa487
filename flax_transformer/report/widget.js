"use strict";
// What pages are made with. Every text on a page is set by textContent: what a user wrote can never become markup.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page"), tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";
const NAMES = { loss: "loss", learning_rate: "learning rate", gradient_norm: "gradient norm",
  bleu: "BLEU", chrf: "chrF", tokenized_bleu: "tokenised BLEU", exact_match: "exact match in %", sentences_per_second: "sentences per second",
  ap: "AP", ap50: "AP50", ap75: "AP75", ap_small: "AP, small", ap_medium: "AP, medium", ap_large: "AP, large", wer: "WER in %", cer: "CER in %", cider: "CIDEr-D" };
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
// Bytes of base64; Uint8Array.from takes twenty times as long.
function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
function number(value) {
  if (typeof value !== "number") return "not a number";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
// ---- colours ---------------------------------------------------------------------------------------------------
const rgbOf = (colour) => (colour.startsWith("#") ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : colour.split(",").map(Number));
function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
// Black or white, whichever can be read on a colour: their contrasts multiply to 21, so that one of them has 4.58 at least.
const inkOn = (rgb) => ((luminance(rgb) + 0.05) ** 2 > 0.0525 ? "#000" : "#fff");
// The style of text on a colour that lies over the card, so opaque; of the page's own colour where there is next to nothing.
function tinted(colour, opacity) {
  if (opacity < 0.02) return "";
  const under = rgbOf(css("--card")), rgb = rgbOf(css(colour)).map((value, i) => Math.round(opacity * value + (1 - opacity) * under[i]));
  return `background: rgb(${rgb}); color: ${inkOn(rgb)}`;
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

function head() {
  document.title = data.title;
  page.append(h("h1", { textContent: data.title }));
  page.append(h("p", { className: "facts" }, ...data.facts.map(([name, value]) => h("span", {}, name + " ", h("b", { textContent: value })))));
  if (data.notes.length) page.append(h("ul", { className: "notes" }, ...data.notes.map((note) => h("li", { textContent: note }))));
}

// ---- charts ----------------------------------------------------------------------------------------------------
function ticks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw * 0.999), list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) list.push(i * step || 0); // never -0
  return list;
}
function logTicks(low, high) {
  const list = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
    for (const m of [1, 2, 5]) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) list.push(m * 10 ** p);
  return list.length > 6 ? list.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-6) : list.length > 1 ? list : [low, high];
}
const chartState = { log: false, step: null, draws: [] };
// What lies along a chart: its name, where it ends, how a place on it is spelt, whether it is whole; `together` is of lines
// that have no places in common: each is read where it last was.
const steps = (last) => ({ name: "step", last, spell: (step) => step.toLocaleString("en"), whole: true, together: false });
function chart(title, lines, axis) {
  const last = axis.last, legend = h("div", { className: "legend" });
  const svg = s("svg", { tabindex: 0, role: "img", "aria-label": `${title} by ${axis.name}; arrow keys read the values` });
  const card = h("div", { className: "card chart" }, h("div", { className: "head" }, h("h3", { textContent: title }), legend), svg);
  const points = lines.flatMap((line) => line.points.filter((point) => point[1] !== null));
  const places = [...new Set(points.map((point) => point[0]))].sort((a, b) => a - b);
  const nearest = (step) => places.reduce((best, now) => (Math.abs(now - step) < Math.abs(best - step) ? now : best), places[0]);
  let scaleX = null, width = 0;
  const left = 52, right = 10, top = 10, bottom = 24, height = 190;

  function values(step) {
    const at = (line) => (axis.together ? line.points.filter((point) => point[1] !== null && point[0] <= step).at(-1) : line.points.find((point) => point[0] === step));
    return lines.map((line) => [line, at(line)]).filter(([, point]) => point);
  }
  function mark() {
    svg.querySelectorAll(".mark").forEach((element) => element.remove());
    const step = chartState.step === null ? null : nearest(chartState.step);
    if (!axis.together) legend.replaceChildren(...lines.map((line) => {
      const known = line.points.filter((point) => point[1] !== null && (step === null || point[0] <= step));
      const at = known.length ? known.at(-1) : null;
      return h("span", { title: at ? `step ${at[0]}` : "" }, h("i", { style: `background: var(${line.color})` }), `${line.name} `, at ? number(at[1]) : "–");
    }));
    if (step === null) return;
    svg.append(s("line", { class: "mark cursor", x1: scaleX(step), x2: scaleX(step), y1: top, y2: height - bottom }));
    for (const [line, point] of values(step))
      if (point[1] !== null) svg.append(s("circle", { class: "mark", cx: scaleX(point[0]), cy: line.y(point[1]), r: 4, style: `fill: var(${line.color}); stroke: var(--card)` }));
  }
  function draw() {
    width = svg.clientWidth || 330;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const log = chartState.log && points.every((point) => point[1] > 0);
    let low = Math.min(...points.map((point) => point[1])), high = Math.max(...points.map((point) => point[1]));
    if (low === high) { low -= Math.abs(low) * 0.1; high += Math.abs(high) * 0.1 || 1; }
    const first = axis.together || places.length === 1 ? 0 : Math.min(...places, last), pad = (high - low) * 0.04;
    if (!log) { low = low >= 0 && low - pad < 0 ? 0 : low - pad; high += pad; }
    const f = log ? Math.log : (value) => value;
    const inset = first === last ? (width - left - right) / 2 : 0; // step 0 alone stands in the middle
    scaleX = (step) => left + inset + ((step - first) / (last - first || 1)) * (width - left - right);
    const y = (value) => height - bottom - ((f(value) - f(low)) / (f(high) - f(low))) * (height - top - bottom);
    const levels = log ? logTicks(low, high) : ticks(low, high, 4);
    let digits = 4; // as many as tell the ticks apart
    while (digits < 12 && new Set(levels.map((value) => value.toPrecision(digits))).size < levels.length) digits++;
    for (const value of levels) {
      svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      svg.append(s("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, digits > 4 ? String(Number(value.toPrecision(digits))) : number(value)));
    }
    for (const step of ticks(first, last, Math.max(3, Math.floor(width / 110))).filter((step) => !axis.whole || Number.isInteger(step)))
      svg.append(s("text", { x: scaleX(step), y: height - 7, "text-anchor": scaleX(step) > width - 30 ? "end" : "middle" }, axis.spell(step)));
    const singles = [];
    for (const line of lines) {
      line.y = y;
      let path = "", pen = "M";
      for (const [step, value] of line.points) {
        if (value === null) { pen = "M"; continue; }
        path += `${pen}${scaleX(step).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      }
      svg.append(s("path", { d: path, style: `stroke: var(${line.color})${line.dash ? `; stroke-dasharray: ${line.dash}` : ""}` }));
      const alone = line.points.filter(([, value], i) => value !== null && [i - 1, i + 1].every((j) => !line.points[j] || line.points[j][1] === null));
      const single = line.points.filter(([, value]) => value !== null).length === 1;
      for (const [step, value] of alone) svg.append(s("circle", { class: "alone", cx: scaleX(step), cy: y(value), r: single ? 4 : 2.5, style: `fill: var(${line.color})` }));
      if (single && lines.length <= 4) singles.push([scaleX(alone[0][0]), y(alone[0][1]), number(alone[0][1])]);
    }
    singles.sort((a, b) => a[1] - b[1]).forEach(([x, at, says], i) => { // a number beside each, never on another
      const below = Math.max(at + 4, i && singles[i - 1][3] + 12), end = x > width - 60;
      singles[i][3] = below;
      svg.append(s("text", { class: "single", x: x + (end ? -8 : 8), y: below, "text-anchor": end ? "end" : "start" }, says));
    });
    mark();
  }
  function point(step) {
    chartState.step = step;
    chartState.draws.forEach((m) => m());
    const at = nearest(step), box = svg.getBoundingClientRect();
    const text = values(at).map(([line, p]) => `${line.name} ${number(p[1])}`).join("\n");
    showTip(`${axis.name} ${axis.spell(at)}\n${text}`, box.left + scaleX(at), box.top + 40);
  }
  const leave = () => { chartState.step = null; chartState.draws.forEach((m) => m()); hideTip(); };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    point(places.reduce((best, now) => (Math.abs(scaleX(now) - x) < Math.abs(scaleX(best) - x) ? now : best), places[0]));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!move) return;
    event.preventDefault();
    const now = chartState.step === null ? (move > 0 ? -1 : places.length) : places.indexOf(nearest(chartState.step));
    point(places[Math.max(0, Math.min(places.length - 1, now + move))]);
  });
  chartState.draws.push(mark);
  redraws.push(draw);
  card.forget = () => { for (const [list, one] of [[redraws, draw], [chartState.draws, mark]]) list.splice(list.indexOf(one), 1); };
  return card;
}
function scroll(heads, rows) {
  return h("div", { className: "card scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { textContent: text })))), h("tbody", {}, ...rows)));
}
