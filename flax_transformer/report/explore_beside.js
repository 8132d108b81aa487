"use strict";
// What another checkpoint makes of the same input: how far its answers are, its heads, how alike the layers are.
const chosenBeside = { kind: 0, layer: 0, head: 0 };
function distanceCard(found, look, row, choose) {
  const side = look.target.length ? "target" : "source", values = found.distance, most = values.indexOf(Math.max(...values)), bits = found.divergence;
  const unit = bits ? " nats" : "", scale = bits ? Math.LN2 : Math.max(1e-9, values[most]);
  const body = [h("h3", { id: "distance", textContent: "How far the two answers are apart" })];
  if (values.length > 1) body.push(h("div", { className: "strip", role: "group", "aria-label": "distance at each position", style: "margin-top: 8px" }, ...values.map((value, i) => {
    const differs = found.agree && !found.agree[i];
    const button = h("button", { type: "button", "aria-pressed": i === row, textContent: seen(look.answer.rows[i]), title: `${number(value)}${unit}${differs ? "; another token is the likeliest" : ""}`, "aria-label": `${look.answer.rows[i]}: ${number(value)}${unit}${differs ? ", another answer is the likeliest" : ""}`, onclick: () => choose(i) });
    button.setAttribute("style", `${tinted("--unsure-hue", Math.min(1, value / scale))}${differs ? "; border-style: dashed; border-color: var(--validation)" : ""}`);
    return linked(button, side, i);
  })));
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const said = bits ? [`Jensen–Shannon divergence ${number(values[row])} nats here (at most ln 2 = 0.6931), ${number(mean)} on average, ${number(values[most])} at most`, `Kullback–Leibler divergence from the first to the other ${number(bits[row])} nats here`, `the likeliest answer is the same at ${found.agree.filter(Boolean).length} of ${found.agree.length} positions`]
    : [`norm of the difference ${number(values[row])} here, ${number(mean)} on average`];
  body.push(h("p", { className: "readout", textContent: said.join(" · ") }));
  if (anyOff()) body.push(h("p", { className: "readout", textContent: "What is switched off is so in the first checkpoint alone." }));
  return h("div", { className: "card" }, ...body);
}
function besideAttention(found, room) {
  const kinds = found.look.kinds, at = chosenBeside;
  if (!kinds.length) return [h("p", { className: "lead", textContent: `${facts.beside} has no attention that shows its weights.` })];
  at.kind = Math.min(at.kind, kinds.length - 1);
  const kind = prepare(kinds[at.kind]);
  at.layer = Math.min(at.layer, kind.layers - 1); at.head = Math.min(at.head, kind.columnsOfHeads.length - 1);
  const column = kind.columnsOfHeads[at.head], one = oneHead(kind, found.look, room, at);
  marks.push(one.mark);
  const choose = (layer, head) => { Object.assign(at, { layer, head }); draw(); document.querySelector('#beside-heads [aria-pressed="true"]')?.focus(); };
  const title = `${facts.beside}: ${kind.name}, layer ${at.layer + 1}, ${column === "mean" || column === "rollout" ? column : `head ${column}`}`;
  return [h("h3", { textContent: `Beside it: heads of ${facts.beside}` }),
    kinds.length > 1 ? h("div", { className: "bar", style: "margin: 0" }, group("kind of attention beside", kinds.map((each, i) => [i, each.name]), at.kind, (i) => { at.kind = i; draw(); })) : null,
    h("div", { className: "explorer two", id: "beside-heads" }, h("div", { className: "card scroll" }, h("h3", { textContent: "All heads" }), headGrid(kind, choose, at, false)), h("div", { className: "card" }, h("div", { className: "head" }, h("h3", { id: "beside-head", textContent: title }), heatRamp()), one.element))].filter(Boolean);
}
function alikeCard(found) {
  const parts = [h("h2", { id: "alike", textContent: "How alike the layers are" })];
  if (!found.cka) return [...parts, h("p", { className: "lead", textContent: "Layers are compared over four positions or more of an input, as many in both models, where both mark the end of their layers." })];
  const name = (layer, count) => (layer === count - 1 ? "end" : `before ${layer + 1}`), across = found.cka[0].length, down = found.cka.length;
  const rows = found.cka.map((row, layer) => h("tr", {}, h("th", { scope: "row", textContent: name(layer, down) }), ...row.map((value, other) => h("td", { textContent: value === null ? "–" : value.toFixed(2), title: `${facts.name || "the first"} ${name(layer, down)}, ${facts.beside} ${name(other, across)}`, style: tinted("--accent-hue", 0.85 * Math.max(0, Math.min(1, value || 0))) }))));
  return [...parts, h("p", { className: "lead", textContent: `Centred kernel alignment of the states before each layer, debiased, over the ${found.positions} positions of this input: 1 where they differ by rotation and scale, about 0 where they have nothing in common, and the fewer positions the less sure. Rows: ${facts.name || "this checkpoint"}; columns: ${facts.beside}. Widths may differ.` }),
    h("div", { className: "card scroll" }, h("table", { className: "lens", "aria-label": "CKA of layers" }, h("thead", {}, h("tr", {}, h("th"), ...found.cka[0].map((_, other) => h("th", { scope: "col", textContent: name(other, across) })))), h("tbody", {}, ...rows)))];
}
