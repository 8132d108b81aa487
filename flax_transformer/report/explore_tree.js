"use strict";
// The beams of a search as a tree: a column for each token, a row for each prefix that nothing goes on from.
const treeOptions = { beams: 4, tokens: 12, all: true };
const STEP = 118, LINE = 25;
function laidOut(nodes, every) {
  const drawn = nodes.map((node, i) => ({ ...node, i })).filter((node) => every || node.kept), children = new Map();
  for (const node of drawn) { if (!children.has(node.parent)) children.set(node.parent, []); children.get(node.parent).push(node); }
  let next = 0;
  const place = (node) => {
    const after = children.get(node.i) || [];
    after.forEach(place);
    node.y = after.length ? after[0].y : next++; // the best goes on in its row, so that what comes first is at the top
  };
  (children.get(-1) || []).forEach(place);
  return { drawn, rows: next, columns: Math.max(...drawn.map((node) => node.depth)) + 1 };
}
function wayTo(nodes, i) {
  const way = [];
  for (let at = i; at >= 0; at = nodes[at].parent) way.unshift(at);
  return way;
}
const spokenOf = (nodes, node, i) => `${wayTo(nodes, i).map((at) => seen(nodes[at].name)).join(" ")}: ${percentOf(node.p)}, ${node.rank >= 0 ? `hypothesis ${node.rank + 1}, score ${number(node.score)}` : node.ends ? "finished, not among the best" : node.kept ? "kept" : "not kept"}; log-probability ${number(node.total)}`;
function treeCard(found, act) {
  if (!found.nodes.length) return h("div", { className: "card" }, h("p", { className: "lead", textContent: "The search ended before its first token." }));
  const { drawn, rows, columns } = laidOut(found.nodes, treeOptions.all), at = new Map(drawn.map((node) => [node.i, node]));
  const best = new Set(found.nodes.flatMap((node, i) => (node.rank >= 0 ? wayTo(found.nodes, i) : []))), width = STEP * columns + 150, height = LINE * rows + 8;
  const x = (node) => 6 + STEP * node.depth, y = (node) => 4 + LINE * node.y;
  const lines = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  for (const node of drawn) {
    const from = at.get(node.parent);
    if (from) lines.append(s("path", { class: best.has(node.i) ? "best" : node.kept ? "kept" : "", d: `M${x(from) + 92} ${y(from) + 11}C${x(node) - 8} ${y(from) + 11} ${x(from) + 100} ${y(node) + 11} ${x(node)} ${y(node) + 11}` }));
  }
  const readout = h("p", { className: "readout one", "aria-live": "polite", textContent: "\u00a0" });
  const buttons = drawn.map((node) => {
    const spoken = spokenOf(found.nodes, node, node.i), show = () => { readout.textContent = spoken; };
    return h("button", { type: "button", className: `${node.rank >= 0 ? "leaf" : node.kept ? "kept" : "left"}${best.has(node.i) ? " best" : ""}`, style: `left: ${x(node)}px; top: ${y(node)}px`, "aria-label": spoken, title: act ? "go on from here" : "", disabled: false, onclick: () => act && act(wayTo(found.nodes, node.i).map((i) => found.nodes[i])), onpointerenter: show, onfocus: show },
      h("span", { textContent: seen(node.name) }), h("small", { textContent: percentOf(node.p) }), node.rank >= 0 ? h("b", { textContent: `${node.rank + 1}` }) : null);
  });
  const ranked = found.nodes.map((node, i) => ({ ...node, i })).filter((node) => node.rank >= 0).sort((a, b) => a.rank - b.rank);
  return h("div", { className: "card" }, readout, h("div", { className: "scroll" }, h("div", { className: "tree", role: "group", "aria-label": `tree of ${drawn.length} prefixes; ${ranked.length} hypotheses come out`, style: `width: ${width}px; height: ${height}px` }, lines, ...buttons)),
    h("ol", { className: "hypotheses" }, ...ranked.map((node) => h("li", {}, h("span", { textContent: wayTo(found.nodes, node.i).map((i) => seen(found.nodes[i].name)).join(" ") }), h("small", { textContent: ` score ${number(node.score)}, log-probability ${number(node.total)}` })))));
}
function treePart(found, served, search, act) {
  const part = h("div", { className: "stack" }, h("h2", { id: "beams", textContent: "Beams" }), h("p", { className: "lead", textContent: `What beam search looks at: the best continuations of every beam at each token. Full boxes were kept, faint ones were not; numbered ones come out, the best is 1.${served ? " Click a token to go on from there." : ""} Nothing is switched off in the search.` }));
  const choose = (label, key, values) => choice(label, values.map((value) => [value, value]), treeOptions[key], (value) => { treeOptions[key] = Number(value); }).element;
  if (served) part.append(h("div", { className: "bar", style: "margin: 0" }, choose("beams", "beams", [2, 3, 4, 5, 6, 8]), choose("tokens", "tokens", [4, 8, 12, 16, 24]), h("button", { type: "button", className: "act plain", id: "search", textContent: "search", onclick: search })));
  if (found) part.append(h("div", { className: "bar", style: "margin: 0" }, group("prefixes", [[true, "all that was looked at"], [false, "what was kept"]], treeOptions.all, (all) => { treeOptions.all = all; draw(); })), treeCard(found, act));
  return part;
}
