"use strict";
// The section of attention maps; its helpers are in widget.js.
const heat = (value, from, to) => { const x = Math.sqrt(value); return from.map((c, i) => Math.round(c + (to[i] - c) * x)); };
function unpack(map) {
  if (map.values) return map;
  const bytes = bytesOf(map.weights);
  const view = new DataView(bytes.buffer), T = map.rows.length, S = map.columns.length;
  map.values = Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535);
  map.at = (layer, head, t, c) => {
    if (head < map.heads) return map.values[((layer * map.heads + head) * T + t) * S + c];
    let sum = 0;
    for (let n = 0; n < map.heads; n++) sum += map.values[((layer * map.heads + n) * T + t) * S + c];
    return sum / map.heads;
  };
  return map;
}
const FLAT = 1.05; // as in attention.py
// Whether every row gives all but the same weight to all that it attends to.
function isFlat(m, layer, head) {
  return m.rows.every((_, t) => {
    const seen = m.columns.map((__, c) => m.at(layer, head, t, c)).filter((value) => value > 0);
    return Math.max(0, ...seen) <= FLAT * Math.min(Infinity, ...seen) + 2 / 65535;
  });
}
const colors = () => ["--heat-0", "--heat-1"].map((name) => css(name).split(",").map(Number));
// Draw a map with its tokens into a width; return where its cells are.
function drawMap(canvas, m, layer, head, room, at = { row: -1, column: -1 }) {
  const T = m.rows.length, S = m.columns.length, [from, to] = colors(), ratio = devicePixelRatio || 1;
  const font = "12px system-ui, sans-serif", context = canvas.getContext("2d");
  context.font = font;
  const widest = (labels) => Math.min(120, Math.max(...labels.map((label) => context.measureText(label).width)));
  const left = widest(m.rows) + 8, top = widest(m.columns) + 8;
  const cell = Math.max(13, Math.min(40, Math.floor((room - left) / S)));
  const width = left + cell * S + 2, height = top + cell * T + 2;
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.width = width + "px"; canvas.style.height = height + "px";
  context.scale(ratio, ratio);
  context.font = font; context.textBaseline = "middle";
  const ink = css("--ink"), soft = css("--soft");
  if (T * S > 4096) { // a pixel for each cell, enlarged: many rectangles take long, and hovering draws them all again
    const cells = h("canvas", { width: S, height: T }), image = new ImageData(S, T);
    for (let t = 0; t < T; t++) for (let c = 0; c < S; c++) image.data.set([...heat(m.at(layer, head, t, c), from, to), 255], 4 * (t * S + c));
    cells.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, top, S * cell, T * cell);
  } else for (let t = 0; t < T; t++) for (let c = 0; c < S; c++) {
    context.fillStyle = `rgb(${heat(m.at(layer, head, t, c), from, to)})`;
    context.fillRect(left + c * cell, top + t * cell, cell - 0.5, cell - 0.5);
  }
  context.strokeStyle = css("--line");
  context.strokeRect(left - 0.5, top - 0.5, S * cell + 0.5, T * cell + 0.5);
  context.textAlign = "right";
  m.rows.forEach((label, t) => { context.fillStyle = t === at.row ? ink : soft; context.fillText(label, left - 6, top + (t + 0.5) * cell, left - 6); });
  context.textAlign = "left";
  m.columns.forEach((label, c) => {
    context.save();
    context.translate(left + (c + 0.5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = c === at.column ? ink : soft;
    context.fillText(label, 0, 0, top - 6);
    context.restore();
  });
  if (at.row >= 0 && at.row < T && at.column < S) {
    context.strokeStyle = css("--validation"); context.lineWidth = 2;
    context.strokeRect(left + at.column * cell, top + at.row * cell, cell - 0.5, cell - 0.5);
  }
  return { left, top, cell, T, S };
}
function thumbnail(m, layer, head, [from, to]) {
  const T = m.rows.length, S = m.columns.length, element = h("canvas", { width: S, height: T });
  const context = element.getContext("2d"), image = context.createImageData(S, T);
  for (let i = 0; i < T * S; i++) image.data.set([...heat(m.at(layer, head, Math.floor(i / S), i % S), from, to), 255], 4 * i);
  context.putImageData(image, 0, 0);
  return element;
}
// The legend of colours.
function heatRamp() {
  return h("span", { className: "ramp" }, "0", h("i", { style: "background: linear-gradient(to right, " +
    [0, .04, .16, .36, .64, 1].map((v) => `color-mix(in srgb, rgb(var(--heat-1)) ${100 * Math.sqrt(v)}%, rgb(var(--heat-0))) ${100 * v}%`).join(", ") + ")" }), "1");
}
function attention() {
  if (!data.pictures) return;
  section("Attention", data.pictures.length ? "Attention weights of every head; a row sums to 1. Choose a head in the overview; hover, touch, or use the arrow keys to read weights, which are kept in steps of 1/65535. Colour is the square root of the weight. The rank of a head is how many of its largest singular values make 90 % of their sum." : "No samples.");
  if (!data.pictures.length) return;
  const state = { picture: 0, kind: Math.max(0, data.pictures[0].maps.length - 1), layer: 0, head: 0, row: -1, column: -1 };
  const bar = h("div", { className: "bar" }), overview = h("div", { className: "card overview" }), readout = h("p", { className: "readout one", "aria-live": "polite" });
  const canvas = h("canvas", { tabIndex: 0, role: "img" }), scroller = h("div", { className: "map" }, canvas);
  const heading = h("h3"), caption = h("p", { className: "readout" });
  const ramp = heatRamp();
  const detail = h("div", { className: "card detail" }, h("div", { className: "head" }, heading, ramp), caption, readout, scroller);
  const map = () => unpack(data.pictures[state.picture].maps[state.kind]);
  const headName = (head) => (head < map().heads ? `head ${head + 1}` : "mean of heads");
  let layout = null;

  function controls() {
    const m = map(), pictures = data.pictures;
    const items = [];
    if (pictures.length > 1) items.push(choice("sentence", pictures.map((p, i) => [i, p.source.length > 70 ? p.source.slice(0, 68) + "…" : p.source]), state.picture, (i) => { state.picture = Number(i); all(); }).element);
    if (pictures[state.picture].maps.length > 1) items.push(group("kind of attention", pictures[state.picture].maps.map((one, i) => [i, one.name]), state.kind, (i) => { state.kind = i; all(); }));
    items.push(choice("layer", Array.from({ length: m.layers }, (_, i) => [i, i + 1]), state.layer, (i) => { state.layer = Number(i); pick(); }).element);
    items.push(choice("head", Array.from({ length: m.heads + 1 }, (_, i) => [i, i < m.heads ? i + 1 : "mean"]), state.head, (i) => { state.head = Number(i); pick(); }).element);
    bar.replaceChildren(...items);
  }
  function heads() {
    const m = map(), range = colors(), grid = h("div", { className: "heads", style: `grid-template-columns: auto repeat(${m.heads + 1}, minmax(0, 72px))` });
    grid.append(h("span"), ...Array.from({ length: m.heads + 1 }, (_, i) => h("span", { textContent: i < m.heads ? i + 1 : "mean" })));
    for (let layer = 0; layer < m.layers; layer++) {
      grid.append(h("span", { textContent: `layer ${layer + 1}` }));
      for (let head = 0; head <= m.heads; head++)
        grid.append(h("button", { type: "button", "aria-label": `layer ${layer + 1}, ${headName(head)}`, "aria-pressed": layer === state.layer && head === state.head,
          onclick: () => { state.layer = layer; state.head = head; pick(); } }, thumbnail(m, layer, head, range)));
    }
    overview.replaceChildren(h("h3", { textContent: "All heads" }), grid);
  }
  function pick() {
    overview.querySelectorAll("button").forEach((button, i) => {
      const across = map().heads + 1;
      button.setAttribute("aria-pressed", Math.floor(i / across) === state.layer && i % across === state.head);
    });
    controls();
    big();
  }
  function big() {
    const m = map(), T = m.rows.length, S = m.columns.length;
    layout = drawMap(canvas, m, state.layer, state.head, Math.min(620, (overview.parentElement.clientWidth || 360) - 34), state);
    const rank = state.head < m.heads ? `, rank ${m.ranks[state.layer][state.head]} of ${Math.min(T, S)}` : "";
    heading.textContent = `${m.name}, layer ${state.layer + 1}, ${headName(state.head)}${rank}${isFlat(m, state.layer, state.head) ? ", flat" : ""}`;
    caption.textContent = m.caption;
    canvas.setAttribute("aria-label", `${heading.textContent}: ${T} by ${S} weights; arrow keys read them`);
    say();
  }
  function say() {
    const m = map();
    if (state.row < 0) { readout.textContent = "\u00a0"; return ""; }
    const weight = m.at(state.layer, state.head, state.row, state.column), seen = m.columns.filter((_, c) => m.at(state.layer, state.head, state.row, c) > 0).length || 1;
    readout.replaceChildren(h("b", { textContent: m.rows[state.row] }), " attends to ", h("b", { textContent: m.columns[state.column] }), " with weight ", h("b", { textContent: weight.toFixed(4) }), ` · uniform ${(1 / seen).toFixed(4)}`);
    return `${m.rows[state.row]} → ${m.columns[state.column]}\nweight ${weight.toFixed(4)}`;
  }
  function select(row, column) {
    state.row = row; state.column = column;
    big();
    if (row < 0) return hideTip();
    const box = canvas.getBoundingClientRect();
    showTip(say(), box.left + layout.left + (column + 1) * layout.cell, box.top + layout.top + row * layout.cell);
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), { left, top, cell, T, S } = layout;
    const column = Math.floor((event.clientX - box.left - left) / cell), row = Math.floor((event.clientY - box.top - top) / cell);
    if (row < 0 || column < 0 || row >= T || column >= S) { if (state.row >= 0) select(-1, -1); }
    else if (row !== state.row || column !== state.column) select(row, column);
  });
  canvas.addEventListener("pointerleave", () => select(-1, -1));
  canvas.addEventListener("blur", () => select(-1, -1));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const limit = (value, size) => Math.max(0, Math.min(size - 1, value));
    select(state.row < 0 ? 0 : limit(state.row + move[0], layout.T), state.row < 0 ? 0 : limit(state.column + move[1], layout.S));
  });
  function all() {
    const m = map();
    Object.assign(state, { layer: Math.min(state.layer, m.layers - 1), head: Math.min(state.head, m.heads), row: -1, column: -1 });
    hideTip();
    controls(); heads(); big();
  }
  state.layer = map().layers - 1;
  page.append(bar, h("div", { className: "attention" }, overview, detail));
  all();
  redraws.push(all);
}
