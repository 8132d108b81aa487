"use strict";
// The sections of samples, as texts and as images; their helpers are in widget.js.
const tokenText = (token, i) => (token.startsWith("·") && token.length > 1 ? (i ? " " : "") + token.slice(1) : token);
function tokens(sample) {
  const line = h("div", { className: "tokens", tabIndex: 0, role: "group", "aria-label": "tokens; arrow keys read their probabilities" });
  const probability = (i) => (typeof sample.logprobs[i] === "number" ? Math.exp(sample.logprobs[i]) : null);
  const spans = sample.tokens.map((token, i) => {
    const p = probability(i), end = /^<.*>$/.test(token);
    const style = p === null ? "" : tinted("--unsure", 0.85 * (1 - p));
    return h("span", { className: end ? "end" : "", style, textContent: end ? token : tokenText(String(token), i) });
  });
  let at = -1;
  const show = (i) => {
    spans.forEach((span, j) => span.classList.toggle("on", i === j));
    at = i;
    if (i < 0) return hideTip();
    const box = spans[i].getBoundingClientRect(), p = probability(i);
    showTip(`${sample.tokens[i]}\n` + (p === null ? "no probability" : `probability ${number(p)}\nlog-probability ${number(sample.logprobs[i])}`), box.left, box.top);
  };
  spans.forEach((span, i) => { span.onpointerenter = () => show(i); });
  line.onpointerleave = line.onblur = () => show(-1);
  line.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    show(Math.max(0, Math.min(spans.length - 1, at + move)));
  };
  line.append(...spans);
  return line;
}
// Runs of words that a summary has from its source; offsets are Python's, of whole characters.
function marked(text, spans) {
  const letters = Array.from(text), line = h("div", { className: "marked" });
  let at = 0;
  for (const [begin, end] of [...spans].sort((a, b) => a[0] - b[0])) {
    if (begin < at) continue;
    line.append(letters.slice(at, begin).join(""), h("mark", { textContent: letters.slice(begin, end).join("") }));
    at = end;
  }
  line.append(letters.slice(at).join(""));
  return line;
}
function samples() {
  if (!data.samples) return;
  const shown = data.samples.shown, total = data.samples.total;
  const known = (sample) => sample.logprobs.filter((v) => v !== null), scored = shown.some((sample) => known(sample).length && Array.isArray(sample.tokens) && sample.tokens.length);
  const answers = (sample) => typeof sample.hypothesis === "string" || (Array.isArray(sample.tokens) && sample.tokens.length > 0), has = (sample) => typeof sample.target === "string";
  section(total === 1 ? "Sample" : "Samples", !total ? "None: they are written when a run ends." : total > shown.length
    ? `${shown.length} of ${total.toLocaleString("en")}: ${scored ? "half spread evenly over the test set, half of the lowest probability" : "spread evenly over the test set"}.` : "");
  if (!total) return;
  const mean = (sample) => { const values = known(sample); return values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0; };
  const list = h("div", { className: "samples" }), more = h("button", { type: "button", className: "more" });
  let order = "spread", limit = 8;
  const fill = () => {
    const chosen = order === "wrong" ? shown.filter((sample) => has(sample) && sample.hypothesis !== sample.target) : order === "unsure" ? [...shown].sort((a, b) => mean(a) - mean(b)) : shown;
    more.textContent = `Show all ${chosen.length}`;
    more.hidden = chosen.length <= limit;
    list.replaceChildren(...chosen.slice(0, limit).map((sample) => {
      const same = sample.hypothesis === sample.target, row = [];
      const add = (label, content, name) => row.push(h("div", { className: "label", textContent: label }), typeof content === "string" ? h("div", { className: name || "", textContent: content || "(empty)" }) : content);
      if (sample.source !== null && sample.source !== undefined) add("source", sample.copied ? marked(sample.source, sample.copied.source) : String(sample.source));
      if (sample.copied) add("copied", marked(sample.hypothesis, sample.copied.summary));
      if (answers(sample) && (!sample.copied || (Array.isArray(sample.tokens) && sample.tokens.length))) add("output", Array.isArray(sample.tokens) && sample.tokens.length ? tokens(sample) : sample.hypothesis);
      if (has(sample)) add("reference", same ? "✓ the same" : sample.target, same ? "same" : "");
      return h("div", { className: `card sample${sample.copied ? " summary" : ""}` }, ...row);
    }));
    if (!chosen.length) list.append(h("p", { className: "lead", textContent: "None on this page." }));
  };
  more.onclick = () => { limit = Infinity; fill(); };
  const orders = [["spread", "in order"], ...(scored ? [["unsure", "lowest probability first"]] : []), ...(shown.some((sample) => has(sample) && answers(sample)) ? [["wrong", "other than the reference"]] : [])];
  const bar = h("div", { className: "bar" });
  if (shown.length > 1 && orders.length > 1) bar.append(group("order of samples", orders, order, (by) => { order = by; fill(); }));
  if (scored) bar.append(h("span", { className: "ramp" }, "token probability 1", h("i", { style: "background: linear-gradient(to right, transparent, rgba(var(--unsure), .85))" }), "0"));
  page.append(...(bar.children.length ? [bar] : []), list, more);
  redraws.push(fill); // colours go by the scheme
}

// ---- images ----------------------------------------------------------------------------------------------------
const HUES = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#7f3c8d"];
const imageState = { order: "wrong", limit: 24, cell: null, sure: 0.5, fill: () => {} };
const isWrong = (sample) => sample.target !== undefined && sample.hypothesis !== sample.target;
function boxed(sample, hue) {
  const [width, height] = sample.size, unit = Math.max(width, height) / 100;
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const rect = ([left, top, right, bottom], style) => svg.append(s("rect", { x: Math.min(left, right), y: Math.min(top, bottom),
    width: Math.abs(right - left), height: Math.abs(bottom - top), fill: "none", style }));
  for (const { box } of sample.objects) {
    rect(box, `stroke: #000; stroke-width: ${0.9 * unit}`);
    rect(box, `stroke: #fff; stroke-width: ${0.5 * unit}; stroke-dasharray: ${2 * unit} ${unit}`);
  }
  const found = sample.found.filter((one) => (one.score ?? 1) >= imageState.sure).sort((a, b) => (a.score ?? 1) - (b.score ?? 1));
  for (const { box, label } of found) rect(box, `stroke: ${hue(label)}; stroke-width: ${0.7 * unit}`);
  for (const { box, label, score } of found) {
    const colour = hue(label), size = (found.length > 8 ? 2.6 : 3.4) * unit, left = Math.max(0, Math.min(box[0], box[2])), late = left > 0.8 * width;
    const says = [found.length > 8 ? null : label, score === null ? null : score.toFixed(2)].filter((part) => part !== null).join(" ");
    svg.append(s("text", { x: late ? Math.min(width, Math.max(box[0], box[2])) : left, y: Math.max(size, Math.min(box[1], box[3]) + 0.4 * size), "font-size": size, "text-anchor": late ? "end" : "start",
      style: `fill: ${inkOn(rgbOf(colour))}; stroke: ${colour}; stroke-width: ${1.2 * unit}; paint-order: stroke; font-weight: 600` }, says));
  }
  const says = `${found.length} detected, ${sample.objects.length} annotated`;
  svg.setAttribute("aria-label", says);
  return [svg, says];
}
function pictureCard(sample, hue) {
  const lines = [], add = (text, name) => lines.push(h("div", { className: name || "", textContent: text }));
  const frame = sample.picture ? h("div", { className: "frame" }, h("img", { src: sample.picture, alt: sample.source ?? "" })) : h("div", { className: "text", textContent: sample.source });
  if (sample.size) {
    const [svg, says] = boxed(sample, hue);
    frame.append(svg);
    add(says);
  } else if (sample.hypothesis !== undefined) {
    const right = sample.target === undefined ? "" : isWrong(sample) ? "✗ " : "✓ ";
    add(`${right}${sample.hypothesis || "(empty)"}${sample.score === null ? "" : ` ${sample.score.toFixed(2)}`}`, right && (isWrong(sample) ? "wrong" : "same"));
    if (isWrong(sample)) add(`reference: ${sample.target}`);
  }
  if (sample.scores) lines.push(h("div", { className: "chances" }, ...sample.scores.flatMap(([name, value]) => [h("span", { textContent: name, title: name }),
    h("i", { style: `width: ${Math.max(1, 100 * (value ?? 0)).toFixed(1)}%` }), h("b", { textContent: value === null ? "–" : value.toFixed(2) })])));
  if (sample.caption) add(sample.caption);
  if (sample.audio) lines.push(h("audio", { controls: true, preload: "none", src: sample.audio }));
  if (sample.source && sample.picture) add(sample.source, "label");
  const wide = sample.wide || (!sample.size && sample.hypothesis === undefined);
  return h("div", { className: `card picture${wide ? " wide" : sample.size || !sample.picture ? " large" : ""}` }, frame, ...lines);
}
const thingsOf = (all) => (all.some((one) => one.audio) ? "recordings" : all.every((one) => !one.picture) ? "texts" : "images");
function images() {
  if (!data.images) return;
  const all = data.images, told = all.filter((one) => one.hypothesis !== undefined && one.target !== undefined && !one.size), found = all.filter((one) => one.size);
  const things = thingsOf(all);
  section(things[0].toUpperCase() + things.slice(1), found.length ? "Dashed boxes are the annotated objects, coloured boxes the detections, with their scores." : told.length ? `${told.length} of the test ${things}, with ${told.some((one) => one.scores) ? "the predicted class and the probabilities" : "the output, and the reference where it differs"}.` : "");
  const labels = [...new Set(found.flatMap((one) => [...one.objects, ...one.found].map((each) => each.label)))].sort();
  const hue = (label) => HUES[labels.indexOf(label) % HUES.length];
  const list = h("div", { className: "pictures" }), more = h("button", { type: "button", className: "more" }), only = h("span", { className: "readout" });
  const rank = (one) => (isWrong(one) ? -2 - (one.score ?? 0) : one.score ?? 0);
  imageState.fill = () => {
    const { order, limit, cell } = imageState;
    const some = cell ? all.filter((one) => one.target === cell[0] && one.hypothesis === cell[1]) : all;
    const chosen = order === "wrong" ? [...some].sort((a, b) => rank(a) - rank(b)) : some;
    more.textContent = `Show all ${chosen.length}`;
    more.hidden = chosen.length <= limit;
    only.replaceChildren(...(cell ? [`${cell[0]}, predicted as ${cell[1]} `, h("button", { type: "button", className: "more", textContent: "show all classes", onclick: () => { imageState.cell = null; imageState.fill(); } })] : []));
    list.replaceChildren(...chosen.slice(0, limit).map((one) => pictureCard(one, hue)));
    if (!chosen.length) list.append(h("p", { className: "lead", textContent: "None on this page." }));
  };
  more.onclick = () => { imageState.limit = Infinity; imageState.fill(); };
  const bar = h("div", { className: "bar" });
  if (told.length > 1) bar.append(group(`order of ${things}`, [["wrong", told.some((one) => one.score !== null) ? "errors of highest probability first" : "errors first"], ["given", "in order"]], imageState.order, (by) => { imageState.order = by; imageState.fill(); }));
  if (found.length) {
    const says = h("b", { textContent: "0.50" });
    const slide = h("input", { type: "range", min: 0, max: 1, step: 0.01, value: imageState.sure, oninput: () => { imageState.sure = Number(slide.value); says.textContent = imageState.sure.toFixed(2); imageState.fill(); } });
    bar.append(h("label", {}, "score at least", slide, says));
    bar.append(h("span", { className: "legend" }, ...labels.map((label) => h("span", {}, h("i", { style: `background: ${hue(label)}` }), label))));
  }
  if (told.length) bar.append(only);
  page.append(...(bar.children.length ? [bar] : []), list, more);
  imageState.fill();
}

// ---- confusion -------------------------------------------------------------------------------------------------
function confusion() {
  if (!data.confusion) return;
  const { classes, counts } = data.confusion, rows = counts.map((row) => row.reduce((a, b) => a + b, 0));
  const things = thingsOf(data.images || []), shown = classes.length <= 30, pick = (t, p) => { imageState.cell = [classes[t], classes[p]]; imageState.fill(); document.getElementById(things)?.scrollIntoView(); };
  const known = new Set((data.images || []).map((one) => `${one.target}\n${one.hypothesis}`));
  section("Confusion", `Test ${data.images ? things : "samples"} by class and predicted class${shown ? "; colour is the fraction of the class, a count underlined leads to its samples above" : ""}.`);
  const tints = [];
  const cell = (t, p) => {
    const count = counts[t][p], share = rows[t] ? count / rows[t] : 0, has = known.has(`${classes[t]}\n${classes[p]}`);
    const element = h("td", { title: `${classes[t]} predicted as ${classes[p]}: ${count} of ${rows[t]}` },
      has ? h("button", { type: "button", textContent: count, "aria-label": `${classes[t]} predicted as ${classes[p]}`, onclick: () => pick(t, p) }) : count ? String(count) : "·");
    tints.push(() => element.setAttribute("style", tinted(t === p ? "--same" : "--unsure", share && 0.08 + 0.82 * Math.sqrt(share))));
    return element;
  };
  redraws.push(() => tints.forEach((tint) => tint())); // colours go by the scheme
  const table = !shown ? null : h("table", { className: "confusion" },
    h("thead", {}, h("tr", {}, h("th", { textContent: "class ↓ predicted →" }), ...classes.map((name) => h("th", { title: name }, h("span", { textContent: name }))), h("th", { textContent: "correct" }))),
    h("tbody", {}, ...classes.map((name, t) => h("tr", {}, h("th", { textContent: name }), ...classes.map((_, p) => cell(t, p)),
      h("td", { textContent: rows[t] ? `${(100 * counts[t][t] / rows[t]).toFixed(1)} %` : "–" })))));
  const mistakes = counts.flatMap((row, t) => row.map((count, p) => [count, t, p])).filter(([count, t, p]) => count && t !== p).sort((a, b) => b[0] - a[0]).slice(0, 10);
  const list = !mistakes.length ? null : h("div", { className: "card scroll" }, h("h3", { textContent: "Most frequent errors" }), h("table", {}, h("thead", {}, h("tr", {}, ...["class", "predicted as", "times", "of its class"].map((text) => h("th", { textContent: text })))),
    h("tbody", {}, ...mistakes.map(([count, t, p]) => h("tr", {}, h("td", { textContent: classes[t] }), h("td", { textContent: classes[p] }), h("td", { textContent: count }), h("td", { textContent: `${(100 * count / rows[t]).toFixed(1)} %` }))))));
  page.append(h("div", { className: "matrices" }, table && h("div", { className: "card scroll" }, table), list));
}
