"use strict";
// The section of attention over pictures; its helpers are in widget.js.
function unpackSeen(map) {
  if (map.at) return map;
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), codes = bytes(map.weights), most = new DataView(bytes(map.most).buffer);
  const columns = map.heads + map.rollout;
  const count = (side) => side.tokens.length + side.rows * side.columns;
  map.S = count(map.keys);
  map.T = count(map.queries);
  map.names = [...Array.from({ length: map.heads }, (_, n) => `head ${n + 1}`), "mean of heads", ...(map.rollout ? ["rollout"] : [])];
  const one = (layer, n, t) => {
    const row = (layer * columns + n) * map.T + t, top = most.getFloat32(4 * row, true);
    return Float32Array.from(codes.subarray(row * map.S, (row + 1) * map.S), (code) => top * (code / 255) ** 2);
  };
  // Weights of one query: of a head, of all in the mean, or through the layers.
  map.at = (layer, head, t) => {
    if (head !== map.heads) return one(layer, head > map.heads ? head - 1 : head, t);
    const mean = new Float32Array(map.S);
    for (let n = 0; n < map.heads; n++) one(layer, n, t).forEach((value, s) => { mean[s] += value / map.heads; });
    return mean;
  };
  return map;
}
function imageAttention() {
  if (!data.seen) return;
  section("Attention", data.seen.length ? "What a patch, or a token that stands for the whole picture, looks at. Click on the picture to choose who looks, or use the arrow keys; hover or touch to read weights. "
    + "Every map has its own scale. Rollout follows attention through all layers up to the chosen one." : "No pictures.");
  if (!data.seen.length) return;
  const state = { picture: 0, stack: data.seen[0].maps.length - 1, layer: 0, head: 0, query: 0, over: true };
  const middle = ({ tokens, rows, columns }) => tokens.length + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const first = (side) => (side.tokens.length ? 0 : middle(side));
  const bar = h("div", { className: "bar" }), overview = h("div", { className: "card overview wide" }), readout = h("p", { className: "readout", "aria-live": "polite" });
  const canvas = h("canvas", { tabIndex: 0, role: "img", className: "seen" }), heading = h("h3"), who = h("div", { className: "bar" }), output = h("p", { className: "readout" });
  const detail = h("div", { className: "card detail narrow" }, h("div", { className: "head" }, heading), who, canvas, readout, output);
  const image = new Image(), seen = () => data.seen[state.picture], map = () => unpackSeen(seen().maps[state.stack]);
  const place = (index, { tokens, columns }) => [Math.floor((index - tokens.length) / columns), (index - tokens.length) % columns];
  const nameOfPlace = (index, side) => { if (index < side.tokens.length) return side.tokens[index]; const [r, c] = place(index, side); return `row ${r + 1}, column ${c + 1}`; };
  let scale = 1;

  function controls() {
    const m = map(), items = [], at = seen();
    if (data.seen.length > 1) items.push(choice("picture", data.seen.map((p, i) => [i, p.source || i + 1]), state.picture, (i) => { state.picture = Number(i); load(); }).element);
    if (at.maps.length > 1) items.push(group("stack of layers", at.maps.map((one, i) => [i, one.name]), state.stack, (i) => { state.stack = i; state.query = first(map().queries); state.layer = Infinity; all(); }));
    items.push(choice("layer", Array.from({ length: m.layers }, (_, i) => [i, i + 1]), state.layer, (i) => { state.layer = Number(i); pick(); }).element);
    items.push(choice("head", m.names.map((name, i) => [i, name.replace(/^head /, "")]), state.head, (i) => { state.head = Number(i); pick(); }).element);
    items.push(group("how", [[true, "over the picture"], [false, "alone"]], state.over, (over) => { state.over = over; big(); }));
    bar.replaceChildren(...items);
    const { tokens, rows, columns } = m.queries, token = state.query < tokens.length, patch = rows * columns ? [[-1, token ? "a patch" : nameOfPlace(state.query, m.queries)]] : [];
    const queries = [...tokens.map((name, i) => [i, name]), ...patch];
    who.replaceChildren(group("who looks", queries, token ? state.query : -1, (i) => choose(i < 0 ? middle(m.queries) : i)));
  }
  function shares(m, layer, head) {
    const patches = m.at(layer, head, state.query).subarray(m.keys.tokens.length);
    return [patches, patches.reduce((a, b) => Math.max(a, b), 0) || 1];
  }
  function small(m, layer, head, [from, to]) {
    const { rows: R, columns: C } = m.keys, element = h("canvas", { width: C, height: R }), context = element.getContext("2d"), pixels = context.createImageData(C, R);
    const [patches, most] = shares(m, layer, head);
    patches.forEach((value, i) => pixels.data.set([...heat(value / most, from, to), 255], 4 * i));
    context.putImageData(pixels, 0, 0);
    return element;
  }
  function heads() {
    const m = map(), range = colors(), across = m.names.length, grid = h("div", { className: "heads wide", style: `grid-template-columns: auto repeat(${across}, minmax(0, 72px))` });
    grid.append(h("span", { textContent: "layer" }), ...m.names.map((name) => h("span", { textContent: name.replace(/^head | of heads$/g, "") })));
    for (let layer = 0; layer < m.layers; layer++) {
      grid.append(h("span", { textContent: layer + 1 }));
      m.names.forEach((name, head) => grid.append(h("button", { type: "button", "aria-label": `layer ${layer + 1}, ${name}`, "aria-pressed": layer === state.layer && head === state.head,
        onclick: () => { state.layer = layer; state.head = head; pick(); } }, small(m, layer, head, range))));
    }
    overview.replaceChildren(h("h3", { textContent: "All heads" }), grid);
  }
  function pick() {
    overview.querySelectorAll("button").forEach((button, i) => {
      const across = map().names.length;
      button.setAttribute("aria-pressed", Math.floor(i / across) === state.layer && i % across === state.head);
    });
    controls();
    big();
  }
  function big() {
    const m = map(), { width, height } = seen(), [from, to] = colors(), ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
    scale = Math.min(Math.min(440, (overview.parentElement.clientWidth || 360) - 34) / width, 440 / height);
    canvas.width = width * scale * ratio; canvas.height = height * scale * ratio;
    canvas.style.width = width * scale + "px"; canvas.style.height = height * scale + "px";
    context.scale(ratio * scale, ratio * scale);
    context.imageSmoothingEnabled = false;
    if (state.over) context.drawImage(image, 0, 0, width, height);
    const [patches, most] = shares(m, state.layer, state.head);
    const { rows: R, columns: C, height: high, width: wide } = m.keys, over = h("canvas", { width: C, height: R }), cells = over.getContext("2d"), pixels = cells.createImageData(C, R);
    patches.forEach((value, i) => pixels.data.set(state.over ? [0, 0, 0, 224 * (1 - value / most)] : [...heat(value / most, from, to), 255], 4 * i));
    cells.putImageData(pixels, 0, 0);
    context.drawImage(over, 0, 0, C * wide, R * high);
    context.fillStyle = state.over ? "rgba(0, 0, 0, .88)" : css("--card"); // what no patch covers
    context.fillRect(C * wide, 0, Math.max(0, width - C * wide), height);
    context.fillRect(0, R * high, Math.min(width, C * wide), Math.max(0, height - R * high));
    if (state.query >= m.queries.tokens.length) {
      const [r, c] = place(state.query, m.queries), { height: tall, width: broad } = m.queries;
      context.strokeStyle = css("--validation"); context.lineWidth = 2.5 / scale;
      context.strokeRect(c * broad, r * tall, Math.min(broad, width - c * broad), Math.min(tall, height - r * tall));
    }
    heading.textContent = `${m.name}, layer ${state.layer + 1}, ${m.names[state.head]}`;
    canvas.setAttribute("aria-label", `${heading.textContent}: what ${nameOfPlace(state.query, m.queries)} looks at; arrow keys choose who looks`);
    output.textContent = [seen().source, seen().output].filter(Boolean).join(": ");
    say();
  }
  function say(key) {
    const m = map(), weights = m.at(state.layer, state.head, state.query), to = weights.subarray(m.keys.tokens.length).reduce((a, b) => a + b, 0);
    const others = m.keys.tokens.map((name, i) => `, the ${name} by ${weights[i].toFixed(3)}`).join("");
    readout.replaceChildren(h("b", { textContent: nameOfPlace(state.query, m.queries) }), ` looks at patches by ${to.toFixed(3)}${others}`);
    return key === undefined ? "" : `${nameOfPlace(key, m.keys)}\nweight ${number(weights[key])}`;
  }
  function choose(query) {
    state.query = query;
    controls(); heads(); big();
  }
  const under = (event, side) => {
    const box = canvas.getBoundingClientRect(), r = Math.floor((event.clientY - box.top) / scale / side.height), c = Math.floor((event.clientX - box.left) / scale / side.width);
    return r < 0 || c < 0 || r >= side.rows || c >= side.columns ? -1 : side.tokens.length + r * side.columns + c;
  };
  canvas.addEventListener("pointermove", (event) => {
    const key = under(event, map().keys);
    if (key < 0) return hideTip();
    showTip(say(key), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => { const query = under(event, map().queries); if (query >= 0) choose(query); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const side = map().queries, { tokens, rows: R, columns: C } = side;
    if (!(R * C)) return choose(Math.max(0, Math.min(tokens.length - 1, state.query + move[0] + move[1])));
    const [r, c] = state.query < tokens.length ? [0, 0] : place(state.query, side).map((value, i) => Math.max(0, Math.min((i ? C : R) - 1, value + move[i])));
    choose(tokens.length + r * C + c);
  });
  function all() {
    const m = map();
    Object.assign(state, { layer: Math.min(state.layer, m.layers - 1), head: Math.min(state.head, m.names.length - 1), query: Math.min(state.query, m.T - 1) });
    hideTip();
    controls(); heads(); big();
  }
  function load() {
    state.stack = Math.min(state.stack, seen().maps.length - 1);
    image.onload = big;
    image.src = seen().picture;
    all();
  }
  state.layer = map().layers - 1;
  state.query = first(map().queries);
  state.head = map().heads;
  page.append(bar, h("div", { className: "attention" }, overview, detail));
  load();
  redraws.push(all);
}
