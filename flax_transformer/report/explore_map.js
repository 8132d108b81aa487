"use strict";
// How one head is drawn: as a matrix (attention.js), as lines between two texts, over an image; and all heads small.
const shades = () => {
  const [from, to] = colors(), table = new Uint8ClampedArray(4 * 256);
  for (let i = 0; i < 256; i++) table.set([...heat(i / 255, from, to), 255], 4 * i);
  return new Uint32Array(table.buffer);
};
const decoded = (text) => new Uint16Array(bytesOf(text).buffer);
// What a kind's heads are: those of the model, their mean, and rollout where there is one.
function prepare(kind) {
  if (kind.at) return kind;
  const T = kind.rows.length, S = kind.columns.length, own = decoded(kind.weights), N = kind.heads;
  const through = kind.rollout ? decoded(kind.rollout) : null;
  kind.columnsOfHeads = [...Array.from({ length: N }, (_, i) => String(i + 1)), ...(N > 1 ? ["mean"] : []), ...(through ? ["rollout"] : [])];
  kind.plane = (layer, column) => {
    const name = kind.columnsOfHeads[column];
    if (name === "rollout") return through.subarray(layer * T * S, (layer + 1) * T * S);
    if (name !== "mean") return own.subarray((layer * N + column) * T * S, (layer * N + column + 1) * T * S);
    const mean = new Float32Array(T * S);
    for (let n = 0; n < N; n++) { const one = own.subarray((layer * N + n) * T * S, (layer * N + n + 1) * T * S); for (let i = 0; i < mean.length; i++) mean[i] += one[i]; }
    for (let i = 0; i < mean.length; i++) mean[i] /= N;
    return mean;
  };
  kind.at = (layer, column, t, c) => kind.plane(layer, column)[t * S + c] / 65535;
  return kind;
}
// All heads are drawn anew whenever anything is chosen; what one looks like is kept, as long as colours are.
function small(kind, layer, column, table) {
  const key = `${layer} ${column}`, colour = table[255] + table[128];
  if (!kind.drawn || kind.colour !== colour) Object.assign(kind, { drawn: new Map(), colour });
  if (!kind.drawn.has(key)) kind.drawn.set(key, drawnSmall(kind, layer, column, table));
  return kind.drawn.get(key);
}
function drawnSmall(kind, layer, column, table) {
  const T = kind.rows.length, S = kind.columns.length, element = h("canvas", { width: S, height: T });
  const context = element.getContext("2d", { willReadFrequently: true }), image = context.createImageData(S, T), pixels = new Uint32Array(image.data.buffer); // in memory, not a texture each
  const plane = kind.plane(layer, column);
  for (let i = 0; i < pixels.length; i++) pixels[i] = table[plane[i] >> 8];
  context.putImageData(image, 0, 0);
  return element;
}
// ---- one head ----------------------------------------------------------------------------------------------------
function matrix(kind, layer, column, room, hover) {
  const canvas = h("canvas", { tabIndex: 0, role: "img", "aria-label": `${kind.rows.length} by ${kind.columns.length} weights; arrow keys read them` });
  const plane = kind.plane(layer, column), S = kind.columns.length, at = { row: -1, column: -1 };
  const fast = { ...kind, at: (_, __, t, c) => plane[t * S + c] / 65535 };
  let layout = drawMap(canvas, fast, layer, column, room, at);
  const select = (row, col) => {
    if (row === at.row && col === at.column) return;
    Object.assign(at, { row, column: col });
    layout = drawMap(canvas, fast, layer, column, room, at);
    hover(row, col);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), col = Math.floor((event.clientX - box.left - layout.left) / layout.cell), row = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
    if (row < 0 || col < 0 || row >= layout.T || col >= layout.S) select(-1, -1);
    else select(row, col);
  });
  canvas.addEventListener("pointerleave", () => select(-1, -1));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const limit = (value, size) => Math.max(0, Math.min(size - 1, value));
    select(at.row < 0 ? 0 : limit(at.row + move[0], layout.T), at.row < 0 ? 0 : limit(at.column + move[1], layout.S));
  });
  return { element: h("div", { className: "map" }, canvas), mark: (side, index) => {
    const row = kind.side[0] === side && side ? index : -1, col = kind.side[1] === side && side ? index : -1;
    layout = drawMap(canvas, fast, layer, column, room, { row: row < 0 ? at.row : row, column: col < 0 ? at.column : col });
  } };
}
function pairs(kind, layer, column, room, hover) {
  const step = 19, T = kind.rows.length, S = kind.columns.length, height = step * Math.max(T, S) + 12, width = Math.max(260, Math.min(room, 560));
  const left = Math.round(width * 0.36), right = Math.round(width * 0.64), plane = kind.plane(layer, column);
  const svg = s("svg", { class: "pairs", viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px`, role: "img", "aria-label": `lines from ${T} queries on the left to ${S} keys on the right` });
  const lines = s("g", {}), texts = { row: [], column: [] };
  const y = (i) => 14 + step * i;
  const draw = (row) => {
    lines.replaceChildren();
    for (let t = 0; t < T; t++) for (let c = 0; c < S; c++) {
      const weight = plane[t * S + c] / 65535;
      if (weight < 0.02 || (row >= 0 && t !== row)) continue;
      lines.append(s("line", { x1: left, x2: right, y1: y(t) - 4, y2: y(c) - 4, "stroke-width": (0.5 + 3 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.08 + weight).toFixed(3) }));
    }
  };
  const label = (text, i, which) => {
    const short = text.length > 16 ? text.slice(0, 15) + "…" : text;
    const element = s("text", { x: which === "row" ? left - 6 : right + 6, y: y(i), "text-anchor": which === "row" ? "end" : "start" }, short);
    element.addEventListener("pointerenter", () => { if (which === "row") draw(i); hover(which === "row" ? i : -1, which === "row" ? -1 : i); });
    element.addEventListener("pointerleave", () => { draw(-1); hover(-1, -1); });
    texts[which].push(element);
    return element;
  };
  svg.append(lines, ...kind.rows.map((text, i) => label(text, i, "row")), ...kind.columns.map((text, i) => label(text, i, "column")));
  draw(-1);
  return { element: h("div", { className: "map" }, svg), mark: (side, index) => {
    [["row", 0], ["column", 1]].forEach(([which, i]) => texts[which].forEach((element, at) => element.classList.toggle("on", kind.side[i] === side && at === index)));
    draw(kind.side[0] === side && side && index >= 0 ? index : -1);
  } };
}
// Colours of weights over the squares of an image.
function paint(canvas, values, rows, columns, table) {
  canvas.width = columns; canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  const low = Math.min(...values), high = Math.max(...values);
  values.forEach((value, i) => { const share = high > low ? (value - low) / (high - low) : 0; pixels[i] = (table[Math.round(255 * share * share)] & 0xffffff) | (Math.round(40 + 150 * share) << 24); });
  context.putImageData(image, 0, 0);
}
function overImage(kind, layer, column, picture, hover) {
  const [first, rows, columns] = kind.grid, S = kind.columns.length, plane = kind.plane(layer, column), canvas = h("canvas", { role: "img", tabIndex: 0 });
  const own = kind.side[0] === "patches" && kind.rows.length === S;
  let query = kind.rows.length > rows * columns || !own ? 0 : -1;
  const readout = h("p", { className: "readout" });
  const draw = () => {
    const values = Array.from({ length: rows * columns }, (_, i) => {
      if (query >= 0) return plane[query * S + first + i] / 65535;
      let sum = 0;
      for (let t = 0; t < kind.rows.length; t++) sum += plane[t * S + first + i] / 65535 / kind.rows.length;
      return sum;
    });
    paint(canvas, values, rows, columns, shades());
    const who = query < 0 ? "the mean of all queries" : kind.rows[query];
    readout.textContent = `${who} looks here; the largest weight of a patch is ${number(Math.max(...values))}`;
    canvas.setAttribute("aria-label", `Attention of ${who} over the image; arrow keys choose a query`);
  };
  const pick = (next) => { query = Math.max(-1, Math.min(kind.rows.length - 1, next)); draw(); hover(query, -1); };
  canvas.addEventListener("pointermove", (event) => {
    if (!own) return;
    const box = canvas.getBoundingClientRect(), c = Math.floor((event.clientX - box.left) / box.width * columns), r = Math.floor((event.clientY - box.top) / box.height * rows);
    const next = kind.rows.length - rows * columns + r * columns + c;
    if (next !== query && r >= 0 && c >= 0 && r < rows && c < columns) pick(next);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (move) { event.preventDefault(); pick(query + move); }
  });
  draw();
  return { element: h("div", {}, h("div", { className: "over" }, h("img", { src: picture, alt: "what the model sees", width: Math.max(320, 24 * columns) }), canvas), readout), mark: () => {} };
}
