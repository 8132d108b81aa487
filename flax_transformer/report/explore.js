"use strict";
// The explorer: a model is asked, and everything that is drawn is linked. Texts are set by textContent alone.
const facts = data.facts, given = data.views;
const state = { input: given.input || { text: "" }, other: { text: "" }, off: { heads: [], sublayers: [], neurons: [], patches: [] }, kind: 0, layer: 0, head: 0, row: null, measure: "weights", form: null, method: "integrated gradients" };
const shown = { look: given.look || null, lens: given.lens || null, effects: given.effects || null, attribute: given.attribute || null, trace: null, flow: null, other: null, beside: given.beside || null, besideLens: given.beside_lens || null, tree: given.tree || null };
const status = h("p", { className: "status", role: "status", "aria-live": "polite" });
let asking = 0;
// A page in a notebook asks the page around it, which asks the kernel.
const waiting = new Map(), mine = Math.random().toString(36).slice(2);
if (data.kernel) addEventListener("message", (event) => {
  if (event.source !== parent || !event.data || !waiting.has(event.data.id)) return;
  waiting.get(event.data.id)(event.data);
  waiting.delete(event.data.id);
});
async function answerOf(view, request) {
  if (data.kernel) {
    const id = `${mine} ${asking}`, answer = await new Promise((done) => { waiting.set(id, done); parent.postMessage({ id, view, request }, "*"); });
    return [answer.status === 200, JSON.parse(answer.text)];
  }
  const answer = await fetch(view, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) });
  return [answer.ok, await answer.json()];
}
async function ask(view, more) {
  const request = { input: state.input, other: state.other, off: state.off, measure: state.measure, ...more };
  const turn = ++asking, began = performance.now();
  status.className = "status busy"; status.textContent = "computing; the first time a length is seen its program is compiled …";
  try {
    const [fits, found] = await answerOf(view, request);
    if (!fits) throw new Error(found.error || "the request was refused");
    if (turn === asking) { status.className = "status"; status.textContent = `answered in ${Math.round(performance.now() - began)} ms`; }
    return found;
  } catch (error) {
    status.className = "status wrong"; status.textContent = error.message;
    return null;
  }
}
const same = (a, b) => a.length === b.length && a.every((part, i) => part === b[i]);
const isOff = (what, entry) => state.off[what].some((each) => same(each, entry));
function flip(what, entry) {
  state.off[what] = isOff(what, entry) ? state.off[what].filter((each) => !same(each, entry)) : [...state.off[what], entry];
  return look();
}
const anyOff = () => Object.values(state.off).some((list) => list.length);
async function look() {
  Object.assign(shown, { lens: null, effects: null, attribute: null, trace: null, flow: null, beside: null, besideLens: null, tree: null });
  const found = await ask("look", {});
  if (!found) return;
  shown.look = found;
  if (state.other.text) shown.other = await ask("look", { input: state.other, off: {} });
  else shown.other = null;
  if (facts.beside) shown.beside = await ask("beside", {});
  draw();
}
// ---- deep links ----------------------------------------------------------------------------------------------------
function link() {
  if (!shown.look || data.kernel) return;
  const parts = new URLSearchParams({ text: state.input.text || "", kind: state.kind, layer: state.layer, head: state.head });
  if (anyOff()) parts.set("off", JSON.stringify(state.off));
  if (state.other.text) parts.set("other", state.other.text);
  if (state.input.written) parts.set("written", state.input.written.join(" "));
  history.replaceState(null, "", "#" + parts);
}
function linkedTo() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (!parts.has("text")) return false;
  for (const name of ["kind", "layer", "head"]) state[name] = Number(parts.get(name)) || 0;
  state.other = { text: parts.get("other") || "" };
  try { Object.assign(state.off, JSON.parse(parts.get("off") || "{}")); } catch { /* a link that was cut */ }
  const written = parts.has("written") ? parts.get("written").split(" ").filter(Boolean).map(Number) : null;
  if (parts.get("text") !== state.input.text || anyOff() || state.other.text || written) { state.input = { text: parts.get("text"), ...(written ? { written } : {}) }; return true; }
  return false;
}
// ---- the input -----------------------------------------------------------------------------------------------------
function asked() {
  const box = h("textarea", { rows: 2, value: state.input.text || "", maxLength: 4000, id: "input" }), other = h("input", { type: "text", value: state.other.text, maxLength: 4000, id: "other" });
  const file = h("input", { type: "file", id: "file" });
  const go = async () => {
    state.input = { text: box.value };
    state.other = { text: other.value };
    state.off = { heads: [], sublayers: [], neurons: [], patches: [] }; state.row = null;
    if (file.files[0]) state.input.file = await new Promise((done) => { const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(file.files[0]); });
    look();
  };
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); go(); } });
  other.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  const label = facts.ids ? "token ids" : "text";
  return h("div", { className: "card ask" }, facts.text ? h("label", {}, label, box) : null,
    facts.file ? h("label", {}, facts.reads.includes("audio") ? "recording" : "image", file) : null,
    facts.text ? h("label", {}, "another text beside it, or to patch in from (as many tokens)", other) : null,
    h("div", { className: "bar", style: "margin: 0" }, h("button", { type: "button", className: "act", id: "look", textContent: "Look", onclick: go }), status));
}
// ---- attention -----------------------------------------------------------------------------------------------------
const kindNow = () => prepare(shown.look.kinds[Math.min(state.kind, shown.look.kinds.length - 1)]);
const entryOf = (kind, layer, head) => [...kind.origin[layer], head];
// What a head is named for, by random tokens that are said twice.
function does(kind, layer, column) {
  const [place, at] = kind.origin[layer], found = shown.heads && shown.heads.heads.find((each) => each[0] === place && each[1] === at && each[2] === column);
  return found ? h("small", { className: "does", textContent: found[3], title: `${found[3]}: ${percentOf(found[4])} of its weight` }) : null;
}
function headGrid(kind, choose, chosen = state, own = true) {
  const across = kind.columnsOfHeads.length, table = shades(), effects = own && shown.effects && shown.effects.effects;
  const most = effects ? Math.max(1e-9, ...effects.flat(2)) : 1;
  const grid = h("div", { className: "grid", style: `grid-template-columns: auto repeat(${across}, minmax(0, 60px))` }, h("span"), ...kind.columnsOfHeads.map((name) => h("span", { textContent: name })));
  for (let layer = 0; layer < kind.layers; layer++) {
    grid.append(h("span", { textContent: layer + 1 }));
    for (let column = 0; column < across; column++) {
      const [place, at] = kind.origin[layer], moved = effects && column < kind.heads && effects[place] && effects[place][at] ? effects[place][at][column] : null;
      const off = own && column < kind.heads && isOff("heads", entryOf(kind, layer, column));
      grid.append(h("button", { type: "button", className: off ? "off" : "", "aria-label": `layer ${layer + 1}, head ${kind.columnsOfHeads[column]}${off ? ", off" : ""}${moved === null ? "" : `, without it the answer moves by ${number(moved)}`}`, "aria-pressed": layer === chosen.layer && column === chosen.head,
        title: moved === null ? "" : `without it: ${number(moved)}`, onclick: () => choose(layer, column), ondblclick: () => own && data.served && kind.switches && column < kind.heads && flip("heads", entryOf(kind, layer, column)) },
        small(kind, layer, column, table), own ? does(kind, layer, column) : null, moved === null ? null : h("small", { style: tinted("--unsure-hue", Math.max(0.03, moved / most)), textContent: moved < 0.0005 ? "0" : moved.toPrecision(1) })));
    }
  }
  return grid;
}
function oneHead(kind, look, room, chosen = state) {
  const readout = h("p", { className: "readout one", "aria-live": "polite", textContent: "\u00a0" });
  const hover = (row, column) => {
    const weight = row >= 0 && column >= 0 ? kind.largest * kind.at(chosen.layer, chosen.head, row, column) : null;
    if (weight !== null) readout.replaceChildren(h("b", { textContent: kind.rows[row] }), " → ", h("b", { textContent: kind.columns[column] }), ` ${state.measure === "norms" ? "norm" : "weight"} `, h("b", { textContent: number(weight) }));
    else readout.textContent = "\u00a0";
    const own = column >= 0 ? [kind.side[1], column] : [kind.side[0], row];
    document.querySelectorAll(".linked.on").forEach((element) => element.classList.remove("on"));
    for (const [side, index] of [[kind.side[0], row], [kind.side[1], column], own]) if (index >= 0) (links[`${side} ${index}`] || []).forEach((element) => element.classList.add("on"));
  };
  const form = state.form && (state.form !== "image" || (kind.grid && look.image)) ? state.form : kind.grid && look.image ? "image" : "matrix";
  const made = form === "image" ? overImage(kind, chosen.layer, chosen.head, look.image, hover) : form === "pairs" ? pairs(kind, chosen.layer, chosen.head, room, hover) : matrix(kind, chosen.layer, chosen.head, room, hover);
  return { form, mark: made.mark, element: h("div", {}, readout, made.element) };
}
function attentionPart() {
  const look = shown.look, part = h("div", { className: "stack" });
  part.append(h("h2", { id: "attention", textContent: "Attention" }));
  if (!look.kinds.length) { part.append(h("p", { className: "lead", textContent: "This model has no attention that shows its weights; sublayers can be switched off below." })); return part; }
  part.append(h("p", { className: "lead", textContent: "Choose a head; double-click switches it off. A row is a query, whose weights sum to 1; colour is the square root of the weight. Rollout follows the mean of the heads down through the layers." }));
  const kind = kindNow();
  state.layer = Math.min(state.layer, kind.layers - 1); state.head = Math.min(state.head, kind.columnsOfHeads.length - 1);
  const choose = (layer, column) => { state.layer = layer; state.head = column; draw(); document.querySelector('.grid [aria-pressed="true"]')?.focus(); };
  const room = Math.min(620, (page.clientWidth || 360) - 34), one = oneHead(kind, look, room), column = kind.columnsOfHeads[state.head];
  marks.push(one.mark);
  const forms = [...(kind.grid && look.image ? [["image", "image"]] : []), ["matrix", "matrix"], ...(kind.rows.length + kind.columns.length <= 160 ? [["pairs", "lines"]] : [])];
  const real = state.head < kind.heads, entry = entryOf(kind, state.layer, state.head), off = real && isOff("heads", entry);
  const bar = h("div", { className: "bar", style: "margin: 0" }, look.kinds.length > 1 ? group("kind of attention", look.kinds.map((each, i) => [i, each.name]), Math.min(state.kind, look.kinds.length - 1), (i) => { state.kind = i; draw(); }) : null,
    group("form", forms, one.form, (form) => { state.form = form; draw(); }),
    data.served ? group("measure", [["weights", "weights"], ["norms", "value norms"]], state.measure, (measure) => { state.measure = measure; look_(); }) : null);
  const heading = h("div", { className: "head" }, h("h3", { id: "head", textContent: `${kind.name}, layer ${state.layer + 1}, ${column === "mean" || column === "rollout" ? column : `head ${column}`}` }), heatRamp());
  const acts = h("div", { className: "chips" },
    data.served && kind.switches && real ? h("button", { type: "button", className: "act plain", id: "switch", "aria-pressed": off, textContent: off ? "switch on again" : "switch this head off", onclick: () => flip("heads", entry) }) : null,
    data.served ? h("button", { type: "button", className: "act plain", id: "effects", textContent: "try without each head", onclick: async () => { shown.effects = await ask("effects", { row: rowNow() }); draw(); } }) : null,
    data.served && facts.text && !look.image ? h("button", { type: "button", className: "act plain", id: "heads", textContent: "name heads by what they do", onclick: async () => { shown.heads = await ask("heads", {}); draw(); } }) : null,
    data.served && kind.rows.length === kind.columns.length && kind.rows.length <= 40 ? h("button", { type: "button", className: "act plain", textContent: "attention flow", onclick: async () => { shown.flow = await ask("flow", { kind: Math.min(state.kind, look.kinds.length - 1), layer: state.layer }); draw(); } }) : null);
  part.append(bar, h("div", { className: "explorer two" }, h("div", { className: "card scroll" }, h("h3", { textContent: "All heads" }), headGrid(kind, choose)), h("div", { className: "card" }, heading, acts, one.element)));
  if (shown.heads) part.append(h("p", { className: "lead", textContent: `Named by where they look in random tokens that are said twice: ${shown.heads.heads.length ? "the token before, the same, an earlier occurrence (duplicate), the token after one (induction), the first, or a fixed distance." : "no head gives 30 % of its weight to one kind of keys."}` }));
  if (shown.flow) part.append(h("h3", { textContent: `Attention flow from layer ${state.layer + 1}` }), layerlessTable(kind.rows, shown.flow.flow));
  if (shown.beside) part.append(...besideAttention(shown.beside, room));
  if (shown.other && shown.other.kinds[state.kind]) {
    const beside = prepare(shown.other.kinds[state.kind]);
    if (beside.columnsOfHeads.length === kind.columnsOfHeads.length) part.append(h("div", { className: "card" }, h("h3", { textContent: `The same head, on: ${state.other.text}` }), oneHead(beside, shown.other, room).element));
  }
  return part;
}
const look_ = () => look();
function layerlessTable(names, rows) {
  return h("div", { className: "card scroll" }, h("table", { className: "lens" }, h("thead", {}, h("tr", {}, h("th"), ...names.map((name) => h("th", { textContent: name })))), h("tbody", {}, ...rows.map((row, t) => h("tr", {}, h("th", { textContent: names[t] }), ...row.map((value) => h("td", { textContent: value.toFixed(2), style: tinted("--accent-hue", 0.85 * value) })))))));
}
// ---- what if -------------------------------------------------------------------------------------------------------
const rowNow = () => shown.look.answer.first + rowShown();
const rowShown = () => Math.min(state.row ?? shown.look.answer.rows.length - 1, shown.look.answer.rows.length - 1);
function whatIf() {
  const look = shown.look, part = h("div", { className: "stack" }, h("h2", { id: "what-if", textContent: "What if" }));
  const chips = Object.entries(state.off).flatMap(([what, list]) => list.map((entry) => h("button", { type: "button", className: "act plain", "aria-pressed": true, title: "undo", textContent: `${{ heads: "head", sublayers: "", neurons: "neuron", patches: "patched" }[what]} ${entry.map((part) => (typeof part === "number" ? part + 1 : part.replace("_output", ""))).join(" · ")} ✕`, onclick: () => flip(what, entry) })));
  part.append(h("p", { className: "lead", textContent: "Switch sublayers off, here, or heads, above; the answers, the lens and every map are of the model as it is then." }));
  if (chips.length) part.append(h("div", { className: "chips", id: "chips" }, ...chips, h("button", { type: "button", className: "act plain", textContent: "all as it was", onclick: () => { state.off = { heads: [], sublayers: [], neurons: [], patches: [] }; look_(); } })));
  const rows = look.sublayers.flatMap((each) => [h("span", { textContent: each.name.replace("_output", "").replaceAll("_", " ") + (look.sublayers.filter((other) => other.name === each.name).length > 1 ? ` ${each.place + 1}` : "") }),
    h("div", { className: "strip" }, ...Array.from({ length: each.layers }, (_, layer) => { const entry = [each.name, each.place, layer]; return h("button", { type: "button", "aria-pressed": isOff("sublayers", entry), "aria-label": `${each.name.replace("_output", "")} ${each.place + 1}, layer ${layer + 1}: ${isOff("sublayers", entry) ? "off" : "on"}`, disabled: !data.served, textContent: isOff("sublayers", entry) ? `${layer + 1} off` : layer + 1, onclick: () => flip("sublayers", entry) }); }))]);
  if (rows.length) part.append(h("div", { className: "card switches" }, ...rows));
  return part;
}
// ---- all of it -----------------------------------------------------------------------------------------------------
async function goOn(one) {
  const look = shown.look, row = rowShown();
  if (look.target.length) state.input = { ...state.input, written: [...look.written.slice(0, row), one.id] };
  else if (state.input.written && row === look.source.length - 1) state.input = { ...state.input, written: [...state.input.written, one.id] };
  else if (facts.ids) state.input = { text: [...look.source.slice(0, row + 1), one.id].join(" ") };
  else state.input = { text: (row === look.source.length - 1 ? state.input.text : look.source.slice(0, row + 1).join("").replaceAll("·", " ").trim()) + one.name.replace("·", " ") };
  state.row = null;
  const box = document.getElementById("input");
  if (box && !look.target.length) box.value = state.input.text;
  look_();
}
// Go on from a node of the tree: what was written up to it is fed, token by token.
function goOnFrom(way) {
  const ids = way.map((node) => node.id), before = shown.tree.continues ? state.input.written || [] : [];
  state.input = { ...state.input, written: [...before, ...ids] };
  state.row = null;
  look_();
}
// What follows the text, which its box does not show.
function followed() {
  const count = (state.input.written || []).length, look = shown.look;
  if (!count || look.target.length || !data.served) return null;
  return h("div", { className: "chips", id: "followed" }, h("span", { textContent: `The text goes on with ${look.source.slice(-count).map(seen).join(" ")}` }), h("button", { type: "button", className: "act plain", textContent: "the text alone", onclick: () => { state.input = { text: state.input.text }; state.row = null; look_(); } }));
}
function button(id, text, act) { return h("button", { type: "button", className: "act plain", id, textContent: text, onclick: act }); }
const results = h("div", { className: "stack", id: "results" });
function draw() {
  links = {}; marks = [];
  const look = shown.look;
  if (!look) return results.replaceChildren();
  const row = rowShown(), parts = [h("h2", { id: "answer", textContent: "Answer" }), followed()];
  const choose = (i) => { state.row = i; Object.assign(shown, { effects: null, attribute: null, trace: null }); draw(); };
  parts.push(h("div", { className: "sides" }, answerCard(look, "The model's answers" + (anyOff() ? ", as switched; the thin bar is before" : ""), row, data.served ? goOn : null, choose), shown.other ? answerCard(shown.other, `On: ${state.other.text}`, Math.min(row, shown.other.answer.rows.length - 1), null, null) : null, shown.beside ? answerCard(shown.beside.look, `Beside it: ${facts.beside}`, row, null, choose) : null));
  if (shown.beside) parts.push(distanceCard(shown.beside, look, row, choose));
  if (look.image && !look.kinds.some((kind) => kind.grid)) parts.push(h("img", { src: look.image, alt: "what the model reads", style: "max-width: 100%; border-radius: 8px; image-rendering: pixelated; min-width: min(100%, 240px)" }));
  parts.push(attentionPart(), whatIf());
  if (facts.writes && (data.served || shown.tree)) parts.push(treePart(shown.tree, data.served, async () => { shown.tree = await ask("tree", { beams: treeOptions.beams, tokens: treeOptions.tokens }); draw(); }, data.served ? goOnFrom : null));
  const tops = look.answer.after.tops, best = tops.length ? tops[row][0] : { id: 0, name: "the first number" };
  parts.push(h("h2", { id: "attribution", textContent: "What the answer depends on" }), h("p", { className: "lead", textContent: `Parts of the input in the log-probability of ${seen(best.name)}.` }));
  if (data.served) parts.push(h("div", {}, button("attribute", "compute", async () => { shown.attribute = await ask("attribute", { row: rowNow(), answer: best.id }); draw(); })));
  if (shown.attribute) parts.push(attributionCard(shown.attribute, look, (method) => { state.method = method; draw(); }));
  if (!look.answer.numbers) {
    parts.push(h("h2", { id: "lens", textContent: "Logit lens" }), h("p", { className: "lead", textContent: "What the model would say if it stopped before a layer: its norm and head, of the hidden states there." }));
    if (data.served) parts.push(h("div", {}, button("compute-lens", "compute", async () => { shown.lens = await ask("lens", {}); if (facts.beside) shown.besideLens = await ask("beside_lens", {}); draw(); })));
    if (shown.lens) parts.push(lensCard(shown.lens, look));
    if (shown.besideLens && shown.beside) parts.push(h("h3", { textContent: `Logit lens of ${facts.beside}` }), lensCard(shown.besideLens, shown.beside.look));
  }
  if (shown.beside) parts.push(...alikeCard(shown.beside));
  if (data.served && state.other.text && !look.answer.numbers) {
    parts.push(h("h2", { id: "tracing", textContent: "Causal tracing" }), h("div", {}, button("trace", "patch each state from the other text", async () => { shown.trace = await ask("trace", { row: rowNow() }); draw(); })));
    if (shown.trace) parts.push(traceCard(shown.trace, (layer, i) => flip("patches", [shown.trace.place, layer, i])));
  }
  results.replaceChildren(...parts.filter(Boolean));
  link();
}
page.replaceChildren();
document.title = `${facts.name || facts.architecture}: explorer`;
page.append(h("h1", { textContent: facts.name || facts.architecture }), h("p", { className: "facts" }, h("span", {}, "architecture ", h("b", { textContent: facts.architecture })), h("span", {}, "reads ", h("b", { textContent: facts.reads.join(", ") || "arrays" })), facts.beside ? h("span", {}, "beside it ", h("b", { textContent: facts.beside })) : null));
const wanted = data.served && !data.kernel && linkedTo();
if (data.served) page.append(asked());
else page.append(h("p", { className: "lead", textContent: (state.input.text ? `Input: ${state.input.text}. ` : "") + "This file needs no server; the command explore without --output answers questions." }));
page.append(results, h("footer", { textContent: data.kernel ? "Answered by the notebook's kernel." : data.served ? "Served by this machine to itself." : "Written by flax_transformer. This page needs no network." }));
redraws.push(draw);
draw();
if (wanted) look();
