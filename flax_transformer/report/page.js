"use strict";
// The page of one run; what it is made with is in widget.js.
// ---- test ------------------------------------------------------------------------------------------------------
function tested() {
  const test = (data.series || {}).test;
  if (!test) return;
  const names = Object.keys(test).filter((name) => name !== "step");
  names.sort((a, b) => (b === data.headline) - (a === data.headline));
  const tiles = names.map((name) => h("div", { className: name === data.headline ? "card first" : "card" },
    h("div", { className: "value", textContent: measured(name, test[name].at(-1)) }), h("div", { className: "name", textContent: nameOf(name) })));
  page.append(h("h2", { textContent: "Test" }), h("div", { className: "tiles" }, ...tiles));
}

function percent(name, value) {
  return data.units[name] === "fraction" && typeof value === "number" ? 100 * value : value;
}
function measured(name, value) {
  return number(percent(name, value)) + (data.units[name] && typeof value === "number" ? " %" : "");
}

// ---- curves ----------------------------------------------------------------------------------------------------
function curves() {
  if (!data.series) return;
  const order = ["loss", "learning_rate", "gradient_norm"], splits = Object.keys(data.series).filter((split) => split !== "test");
  const metrics = [...new Set([...order, ...splits.flatMap((split) => Object.keys(data.series[split]))])].filter((name) => name !== "step");
  const last = Math.max(0, ...splits.flatMap((split) => data.series[split].step));
  const cards = metrics.map((metric) => {
    const lines = splits.filter((split) => data.series[split][metric]).map((split) => ({
      name: split, color: split === "validation" ? "--validation" : split === "train" ? "--train" : "--test",
      points: data.series[split].step.map((step, i) => [step, percent(metric, data.series[split][metric][i])]),
    })).filter((line) => line.points.some((point) => point[1] !== null));
    return lines.length ? chart(nameOf(metric) + (data.units[metric] ? ", %" : ""), lines, steps(last)) : null;
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
  const cell = (name, value, step) => h("td", {}, value === null ? "–" : measured(name, value), value === null || step === null ? null : h("small", { textContent: ` at ${step.toLocaleString("en")}` }));
  const rows = names.map((name) => h("tr", {}, h("td", { textContent: nameOf(name) }), ...splits.flatMap((split) => {
    const column = data.series[split][name], steps = data.series[split].step;
    const known = column ? column.map((value, i) => [value, steps[i]]).filter(([value]) => value !== null) : [];
    const last = known.length ? cell(name, known.at(-1)[0], split === "test" ? null : known.at(-1)[1]) : h("td", { textContent: "–" });
    if (split !== "validation") return [last];
    const lower = /loss|perplexity|error/.test(name);
    const best = known.reduce((a, b) => (a === null || (lower ? b[0] < a[0] : b[0] > a[0]) ? b : a), null);
    return [last, best ? cell(name, best[0], best[1]) : h("td", { textContent: "–" })];
  })));
  const heads = splits.flatMap((split) => (split === "validation" ? ["validation, last", "validation, best"] : [split === "test" ? "test" : `${split}, last`]));
  page.append(scroll(["metric", ...heads], rows));
}

// ---- profile ---------------------------------------------------------------------------------------------------
function profile() {
  if (!data.profile) return;
  section("Profile", "Time of the operations in the traced steps, over all threads and devices; derivatives count for their module.");
  const share = (value) => h("td", { textContent: `${(100 * value).toFixed(1)} %` });
  const table = (heads, rows) => page.append(scroll(heads, rows));
  table(["module", "fraction"], data.profile.modules.map(([module, part]) => h("tr", {}, h("td", { textContent: module }), share(part))));
  table(["operation", "module", "ms", "fraction", "times"], data.profile.operations.map(([module, name, seconds, part, count]) =>
    h("tr", {}, h("td", { textContent: name }), h("td", { textContent: module }), h("td", { textContent: number(1000 * seconds) }), share(part), h("td", { textContent: count.toLocaleString("en") }))));
  if (data.profile.more) page.append(h("p", { className: "lead", textContent: `${data.profile.more.toLocaleString("en")} shorter ones are not shown.` }));
}

// ---- configuration ---------------------------------------------------------------------------------------------
function tree(value) {
  const plain = h("dl"), inner = [], isNode = (item) => item !== null && typeof item === "object" && !Array.isArray(item) && item.function === undefined;
  const branch = (name, item) => h("details", {}, h("summary", {}, name + " ", h("small", { textContent: String(item.type || "").split(":").at(-1) })), tree(item));
  const spell = (item) => (item === null || item === "" ? "none" : typeof item === "object" ? (item.function === undefined ? JSON.stringify(item) : String(item.function).split(":").at(-1)) : String(item));
  for (const [name, item] of Object.entries(value)) {
    if (name === "type") continue;
    if (isNode(item)) inner.push(branch(name, item));
    else if (Array.isArray(item) && item.length && item.every(isNode)) inner.push(...item.map((one, i) => branch(item.length > 1 ? `${name} ${i + 1}` : name, one)));
    else plain.append(h("dt", { textContent: name }), h("dd", { textContent: Array.isArray(item) ? item.map(spell).join(", ") || "none" : spell(item) }));
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
for (const part of [head, tested, curves, samples, images, confusion, attention, imageAttention, metrics, profile, configuration]) part();
page.append(h("footer", { textContent: "Written by flax_transformer. This page needs no network." }));
redraws.forEach((draw) => draw());
