"use strict";
// The sections of the explorer: answers, attributions, lens, tracing. Each gives an element; what is chosen is in `state`.
const percentOf = (p) => (p >= 0.9995 ? "100 %" : p < 0.001 ? "<0.1 %" : (100 * p).toFixed(1) + " %");
const seen = (name) => (name && name.trim() ? name : name.replaceAll("\n", "↵").replaceAll(" ", "·") || "·");
const linked = (element, side, index) => {
  element.classList.add("linked");
  element.addEventListener("pointerenter", () => light(side, index));
  element.addEventListener("pointerleave", () => light("", -1));
  element.addEventListener("focus", () => light(side, index));
  element.addEventListener("blur", () => light("", -1));
  (links[`${side} ${index}`] ||= []).push(element);
  return element;
};
let links = {}, marks = [];
// What is hovered in one view lights up in all.
function light(side, index) {
  document.querySelectorAll(".linked.on").forEach((element) => element.classList.remove("on"));
  if (index >= 0) (links[`${side} ${index}`] || []).forEach((element) => element.classList.add("on"));
  marks.forEach((mark) => mark(side, index));
}
function bars(after, before, act) {
  const known = before ? new Map(before.map((one) => [one.id, one.p])) : null;
  return h("div", { className: "bars" }, ...after.flatMap((one) => {
    const was = known ? known.get(one.id) : undefined, name = seen(one.name);
    const label = act ? h("button", { type: "button", textContent: name, title: "go on with this", onclick: () => act(one) }) : h("span", { textContent: name });
    return [label, h("span", { style: "max-width: none" }, h("i", { style: `width: ${(100 * one.p).toFixed(2)}%` }), known ? h("i", { className: "before", style: `width: ${(100 * (was || 0)).toFixed(2)}%` }) : null),
      h("span", { textContent: percentOf(one.p) + (known ? ` · was ${was === undefined ? "lower" : percentOf(was)}` : "") })];
  }));
}
function answerCard(look, title, row, act, choose) {
  const answer = look.answer, after = answer.after, changed = after.moved !== undefined, side = look.target.length ? "target" : "source";
  const body = [h("h3", { textContent: title })];
  if (answer.rows.length > 1) body.push(h("div", { className: "strip", role: "group", "aria-label": "position that answers", style: "margin-top: 8px" }, ...answer.rows.map((token, i) => {
    const best = after.tops.length ? after.tops[i][0].name : "", moved = changed ? after.moved[i] : 0;
    const button = h("button", { type: "button", textContent: seen(token), title: best ? `${token} → ${best}` : token, "aria-pressed": i === row, onclick: () => choose && choose(i) });
    if (changed) button.style.borderBottom = `3px solid rgba(var(--unsure), ${Math.min(1, moved * 2).toFixed(3)})`;
    return linked(button, side, i);
  })));
  if (answer.numbers || !after.tops.length) body.push(h("p", { className: "lead", textContent: "This model gives numbers, which are not drawn; how far they move under a switch is." }));
  else body.push(bars(after.tops[row], changed ? answer.before.tops[row] : null, answer.continues && act));
  const facts = [];
  if (changed) facts.push(`moved by ${number(after.moved[row] ?? 0)}${answer.numbers ? "" : " nats"} here, ${number(Math.max(...after.moved))} at most`);
  if (typeof after.loss === "number") facts.push(`loss ${number(after.loss)}` + (changed ? `, was ${number(answer.before.loss)}` : ""));
  body.push(h("p", { className: "readout", "data-moved": changed ? String(Math.max(...after.moved)) : "", textContent: facts.join(" · ") }));
  return h("div", { className: "card" }, ...body);
}
// ---- attributions --------------------------------------------------------------------------------------------------
function attributionCard(found, look, choose) {
  const names = Object.keys(found.values), method = names.includes(state.method) ? state.method : names[0], values = found.values[method];
  const most = Math.max(1e-12, ...values.map(Math.abs)), side = look.source.length === values.length ? "source" : "";
  const shown = [group("method", names.map((name) => [name, name]), method, choose)];
  if (found.grid && look.image) {
    const canvas = h("canvas", { role: "img", "aria-label": `${method} over the input` });
    paint(canvas, values.map((value) => Math.max(0, value)), found.grid[0], found.grid[1], shades());
    shown.push(h("div", { className: "over", style: "margin-top: 8px" }, h("img", { src: look.image, alt: "what the model sees", width: 320 }), canvas), h("p", { className: "readout", textContent: "Squares that speak for the answer; those that speak against it are left dark." }));
  } else {
    const labels = side ? look.source : values.map((_, i) => String(i + 1));
    shown.push(h("div", { className: "strip", style: "margin-top: 8px" }, ...labels.map((token, i) => {
      const share = values[i] / most, button = h("button", { type: "button", textContent: seen(token), title: number(values[i]), "aria-label": `${token}: ${number(values[i])}` });
      button.setAttribute("style", tinted(share > 0 ? "--same-hue" : "--unsure-hue", Math.abs(share)));
      return side ? linked(button, side, i) : button;
    })), h("p", { className: "readout", textContent: "Green speaks for the answer, orange against it; hover for the value." }));
  }
  shown.push(h("p", { className: "readout" }, "integrated gradients: completeness error ", h("b", { textContent: number(Math.abs(found.error)) })));
  const rows = names.map((name, i) => h("tr", {}, h("th", { textContent: name }), ...names.map((_, j) => h("td", { textContent: found.agreement[i][j].toFixed(2) }))));
  shown.push(h("details", {}, h("summary", { textContent: "agreement of the methods (rank correlation)" }), h("div", { className: "scroll" }, h("table", { className: "lens" }, h("thead", {}, h("tr", {}, h("th"), ...names.map((name) => h("th", { textContent: name })))), h("tbody", {}, ...rows)))));
  return h("div", { className: "card" }, ...shown);
}
// ---- tables over layers and positions ----------------------------------------------------------------------------
function layerTable(columns, cells, sides, act) {
  const head = h("tr", {}, h("th"), ...columns.map((text, i) => linked(h("th", { textContent: text }), sides, i)));
  const rows = cells.map((row, layer) => h("tr", {}, h("th", { textContent: layer < cells.length - 1 || !act ? `layer ${layer + 1}` : `layer ${layer + 1}` }), ...row.map((cell, i) => {
    const inner = act ? h("button", { type: "button", textContent: cell.text, "aria-label": cell.label, onclick: () => act(layer, i) }) : cell.text;
    return linked(h("td", { title: cell.label, style: tinted("--accent-hue", 0.85 * cell.p) }, inner), sides, i);
  })));
  return h("div", { className: "card scroll" }, h("table", { className: "lens" }, h("thead", {}, head), h("tbody", {}, ...rows.reverse())));
}
function lensCard(found, look) {
  const side = look.target.length ? "target" : "source", last = found.names.length - 1;
  const cells = found.names.map((row, layer) => row.map((name, i) => ({ text: seen(name), p: found.p[layer][i], label: `${layer === last ? "the end" : `before layer ${layer + 1}`}, ${found.rows[i]}: ${name} ${percentOf(found.p[layer][i])}` })));
  const table = layerTable(found.rows, cells, side, null);
  table.querySelectorAll("tbody tr").forEach((row, i) => { row.firstChild.textContent = i === 0 ? "end" : `before layer ${last - i + 1}`; });
  return table;
}
function traceCard(found, act) {
  const high = Math.max(found.own, found.other), low = Math.min(found.own, found.other);
  const cells = found.p.map((row, layer) => row.map((p, i) => ({ text: percentOf(p), p: Math.max(0, Math.min(1, (p - low) / Math.max(1e-9, high - low))), label: `layer ${layer + 1}, ${found.columns[i]}: ${found.answer} ${percentOf(p)}; patch it in` })));
  return h("div", { className: "stack" }, h("p", { className: "lead", textContent: `Probability of ${seen(found.answer)}, the other input's answer, when the state before a layer comes from there: ${percentOf(found.own)} without, ${percentOf(found.other)} in the other itself. Click a cell to patch it in.` }), layerTable(found.columns, cells, "source", act));
}
