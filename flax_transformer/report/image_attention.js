"use strict";
// The section of attention over images; its helpers are in widget.js.
const OPACITY = 0.65; // as in image_attention.py
function viridis(share) {
  const at = Math.max(0, Math.min(1, share)) * (data.colours.length - 1), i = Math.min(Math.floor(at), data.colours.length - 2);
  return data.colours[i].map((from, c) => Math.round(from + (data.colours[i + 1][c] - from) * (at - i)));
}
function unpackSeen(map) {
  if (map.at) return map;
  const bytes = (text) => bytesOf(text), floats = (text) => new Float32Array(bytes(text).buffer);
  const codes = bytes(map.weights), ranges = floats(map.ranges), uniform = floats(map.uniform), columns = map.heads + map.rollout;
  const count = (side) => side.tokens.length + side.rows * side.columns, first = map.keys.tokens.length;
  map.S = count(map.keys);
  map.T = count(map.queries);
  map.names = [...Array.from({ length: map.heads }, (_, n) => `head ${n + 1}`), "mean of heads", ...(map.rollout ? ["rollout"] : [])];
  const parts = [[0, first], [first, map.S]].filter(([from, to]) => to > from); // tokens and patches have ranges of their own
  const one = (layer, n, t) => {
    const row = (layer * columns + n) * map.T + t, values = new Float32Array(map.S);
    parts.forEach(([from, to], part) => {
      const [low, high] = ranges.subarray(2 * (row * parts.length + part));
      for (let s = from; s < to; s++) values[s] = low + ((high - low) * codes[row * map.S + s]) / 255;
    });
    return values;
  };
  // Weights of one query: of a head, of all in the mean, or through the layers.
  map.at = (layer, head, t) => {
    if (head !== map.heads) return one(layer, head > map.heads ? head - 1 : head, t);
    const mean = new Float32Array(map.S);
    for (let n = 0; n < map.heads; n++) one(layer, n, t).forEach((value, s) => { mean[s] += value / map.heads; });
    return mean;
  };
  map.uniformAt = (layer, head, t) => uniform[(layer * (1 + map.rollout) + (head > map.heads ? 1 : 0)) * map.T + t];
  // The largest weight of a patch that a query has in any layer and head.
  map.top = (t) => {
    let most = 0;
    for (let layer = 0; layer < map.layers; layer++) for (let n = 0; n < map.heads; n++)
      most = Math.max(most, ranges[2 * (((layer * columns + n) * map.T + t) * parts.length + parts.length - 1) + 1]);
    return most;
  };
  return map;
}
function imageAttention() {
  if (!data.seen) return;
  section("Attention", data.seen.length ? "Attention weights of one query over the patches of an image. " + (data.seen.some((one) => one.maps.some((map) => map.rollout)) ? "Rollout multiplies the mean attention of all layers up to the chosen one. " : "")
    + "Flat attention, whose weights differ by less than 5 %, has one colour in place of its differences." : "No images.");
  if (!data.seen.length) return;
  const state = { picture: 0, stack: data.seen[0].maps.length - 1, layer: 0, head: 0, query: 0, view: "overlay", absolute: false };
  const middle = ({ tokens, rows, columns }) => tokens.length + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const first = (side) => (side.tokens.length ? 0 : middle(side));
  const bar = h("div", { className: "bar" }), overview = h("div", { className: "card overview wide" }), readout = h("p", { className: "readout", "aria-live": "polite" });
  const canvas = h("canvas", { tabIndex: 0, role: "img", className: "seen" }), heading = h("h3"), who = h("div", { className: "bar queries" }), output = h("p", { className: "readout" });
  const hint = h("p", { className: "readout" }), ramp = h("span", { className: "ramp" }), strength = h("p", { className: "readout strength" });
  const detail = h("div", { className: "card detail narrow" }, h("div", { className: "head" }, heading, ramp), hint, who, canvas, strength, readout, output);
  const plain = new Image(), grey = new Image(), seen = () => data.seen[state.picture], map = () => unpackSeen(seen().maps[state.stack]);
  const place = (index, { tokens, columns }) => [Math.floor((index - tokens.length) / columns), (index - tokens.length) % columns];
  const nameOfPlace = (index, side) => { if (index < side.tokens.length) return side.tokens[index]; const [r, c] = place(index, side); return `row ${r + 1}, column ${c + 1}`; };
  const three = (value) => (value !== 0 && value < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3))));
  let scale = 1;

  function controls() {
    const m = map(), items = [], at = seen();
    if (data.seen.length > 1) items.push(choice("image", data.seen.map((p, i) => [i, p.source || i + 1]), state.picture, (i) => { state.picture = Number(i); load(); }).element);
    if (at.maps.length > 1) items.push(group("stack of layers", at.maps.map((one, i) => [i, one.name]), state.stack, (i) => { state.stack = i; state.query = first(map().queries); state.layer = Infinity; all(); }));
    items.push(choice("layer", Array.from({ length: m.layers }, (_, i) => [i, i + 1]), state.layer, (i) => { state.layer = Number(i); pick(); }).element);
    items.push(choice("head", m.names.map((name, i) => [i, name.replace(/^head /, "")]), state.head, (i) => { state.head = Number(i); pick(); }).element);
    items.push(group("scale of colours", [[false, "each map from min to max"], [true, "all maps from 0"]], state.absolute, (absolute) => { state.absolute = absolute; heads(); big(); }));
    items.push(group("view", [["overlay", "overlay"], ["weights", "weights"], ["image", "image"]], state.view, (view) => { state.view = view; big(); }));
    bar.replaceChildren(...items);
    const { tokens, rows, columns } = m.queries, token = state.query < tokens.length, patch = rows * columns ? [[-1, token ? "a patch" : nameOfPlace(state.query, m.queries)]] : [];
    const queries = [...tokens.map((name, i) => [i, name]), ...patch];
    hint.textContent = "Choose a query: " + (!patch.length ? "a button, or arrow keys on the image." : tokens.length ? "a button, a click on a patch, or arrow keys." : "click on a patch, or arrow keys.");
    who.replaceChildren(group("query", queries, token ? state.query : -1, (i) => choose(i < 0 ? middle(m.queries) : i)));
    who.hidden = !tokens.length;
  }
  // Weights of the patches, and the ends of the colours; flat attention has no ends.
  function patchesOf(m, layer, head) {
    const patches = m.at(layer, head, state.query).subarray(m.keys.tokens.length);
    const [least, most] = patches.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, 0]), flat = most <= FLAT * least;
    const [low, high] = state.absolute ? [0, m.top(state.query)] : flat ? [0, 0] : [least, most];
    const share = (value) => (high > low ? (value - low) / (high - low) : 0.5);
    return { patches, low, high, share, flat, says: `max ${three(most)} · uniform ${three(m.uniformAt(layer, head, state.query))}${flat ? " · flat" : ""}` };
  }
  function painted(m, layer, head) {
    const { rows: R, columns: C } = m.keys, element = h("canvas", { width: C, height: R }), context = element.getContext("2d"), pixels = context.createImageData(C, R);
    const found = patchesOf(m, layer, head);
    found.patches.forEach((value, i) => pixels.data.set([...viridis(found.share(value)), 255], 4 * i));
    context.putImageData(pixels, 0, 0);
    return { ...found, element };
  }
  function heads() {
    const m = map(), across = m.names.length, grid = h("div", { className: "heads wide", style: `grid-template-columns: auto repeat(${across}, minmax(0, 72px))` });
    grid.append(h("span", { textContent: "layer" }), ...m.names.map((name) => h("span", { textContent: name.replace(/^head | of heads$/g, "") })));
    for (let layer = 0; layer < m.layers; layer++) {
      grid.append(h("span", { textContent: layer + 1 }));
      m.names.forEach((name, head) => {
        const { element, says } = painted(m, layer, head);
        grid.append(h("button", { type: "button", title: says, "aria-label": `layer ${layer + 1}, ${name}`, "aria-pressed": layer === state.layer && head === state.head,
          onclick: () => { state.layer = layer; state.head = head; pick(); } }, element));
      });
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
    const m = map(), { width, height } = seen(), ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
    scale = Math.min(Math.min(440, (overview.parentElement.clientWidth || 360) - 34) / width, 440 / height);
    canvas.width = width * scale * ratio; canvas.height = height * scale * ratio;
    canvas.style.width = width * scale + "px"; canvas.style.height = height * scale + "px";
    context.scale(ratio * scale, ratio * scale);
    context.imageSmoothingEnabled = false;
    const { element, low, high, flat, says } = painted(m, state.layer, state.head), { rows: R, columns: C, height: tall, width: wide } = m.keys;
    if (state.view !== "weights") context.drawImage(state.view === "image" ? plain : grey, 0, 0, width, height);
    context.globalAlpha = { overlay: OPACITY, weights: 1, image: 0 }[state.view];
    context.drawImage(element, 0, 0, C * wide, R * tall);
    context.globalAlpha = 1;
    if (state.query >= m.queries.tokens.length) {
      const [r, c] = place(state.query, m.queries), { height: long, width: broad } = m.queries;
      const box = [c * broad, r * long, Math.min(broad, width - c * broad), Math.min(long, height - r * long)];
      for (const [colour, thick] of [["#000", 4], ["#fff", 2]]) { context.strokeStyle = colour; context.lineWidth = thick / scale; context.strokeRect(...box); }
    }
    const stack = seen().maps.length > 1 ? `${m.name}, ` : "";
    heading.textContent = `${stack}layer ${state.layer + 1}, ${m.names[state.head]}`;
    strength.textContent = says;
    ramp.replaceChildren(...(flat && !state.absolute ? ["flat"] : [three(low), h("i", { style: `background: linear-gradient(to right, ${data.colours.map((colour) => `rgb(${colour})`).join(", ")})` }), three(high)]));
    canvas.setAttribute("aria-label", `${heading.textContent}: attention of ${nameOfPlace(state.query, m.queries)} to patches, ${says}; arrow keys choose the query`);
    output.textContent = [seen().source, seen().output].filter(Boolean).join(": ");
    say();
  }
  function say(key) {
    const m = map(), weights = m.at(state.layer, state.head, state.query), to = weights.subarray(m.keys.tokens.length).reduce((a, b) => a + b, 0);
    const tokens = m.keys.tokens.map((name, i) => [weights[i], name]), shown = tokens.length > 6 ? [[tokens.reduce((a, [value]) => a + value, 0), `all ${tokens.length} tokens`]] : tokens;
    const others = shown.map(([value, name]) => `, to ${name} ${value.toFixed(3)}`).join("");
    readout.replaceChildren("attention of ", h("b", { textContent: nameOfPlace(state.query, m.queries) }), `: to patches ${to.toFixed(3)}${others}`);
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
    plain.onload = grey.onload = big;
    plain.src = seen().picture;
    grey.src = seen().grey;
    all();
  }
  state.layer = map().layers - 1;
  state.query = first(map().queries);
  state.head = map().heads;
  page.append(bar, h("div", { className: "attention" }, overview, detail));
  load();
  redraws.push(all);
}
