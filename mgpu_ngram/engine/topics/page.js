"use strict";
// Text from the model reaches the page through textContent and setAttribute alone, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { topics, words, totals, tokens, groups, texts } = data;
  const byId = (id) => document.getElementById(id);
  const count = new Intl.NumberFormat("en");
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
  const reduce = (list, pick, better, start) => list.reduce((best, item) => better(best, pick(item)), start);

  function make(tag, parent, attributes = {}, text = null) {
    const svg = parent.namespaceURI === "http://www.w3.org/2000/svg" || tag === "svg";
    const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== null) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  // State: the place in `topics` of the selected one, the relevance weight, and a word that is marked in the map.
  let selected = 0, lambda = data.lambda, marked = -1, zoom = 1;

  const beta = (word) => (Array.isArray(data.beta) ? data.beta[word] : data.beta);

  /** The best words of a topic: [place in topic.words, ...], by lambda ln p(w|k) + (1 - lambda) ln (p(w|k) / p(w)). */
  function bestWords(topic, n) {
    const scores = topic.words.map((word, i) => {
      const excess = topic.excess ? topic.excess[i] : 0;  // of the prior of a seed word
      const logProb = Math.log((topic.counts[i] + excess + beta(word)) * topic.scale);
      return lambda * logProb + (1 - lambda) * (logProb - Math.log(totals[word] / tokens));
    });
    return scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a] || topic.words[a] - topic.words[b]).slice(0, n);
  }

  const label = (topic, n) => bestWords(topic, n).map((i) => words[topic.words[i]]).join(", ");

  // The map.
  const map = byId("map"), WIDTH = 640, HEIGHT = 550, MARGIN = 46;
  const dots = [];

  const most = reduce(topics, (t) => t.share, Math.max, 0) || 1;

  function radius(topic) {
    const largest = Math.min(44, 190 / Math.sqrt(topics.length) + 6);
    return Math.max(2.5, largest * Math.sqrt(topic.share / most));
  }

  function place(topic) {
    const low = [reduce(topics, (t) => t.x, Math.min, 0), reduce(topics, (t) => t.y, Math.min, 0)];
    const high = [reduce(topics, (t) => t.x, Math.max, 0), reduce(topics, (t) => t.y, Math.max, 0)];
    const scale = zoom * Math.min(
      (WIDTH - 2 * MARGIN) / (high[0] - low[0] || 1), (HEIGHT - 2 * MARGIN) / (high[1] - low[1] || 1));
    const middle = zoom > 1 ? [topics[selected].x, topics[selected].y]
      : [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
    return { scale, middle, at: (t) => [WIDTH / 2 + (t.x - middle[0]) * scale, HEIGHT / 2 - (t.y - middle[1]) * scale] };
  }

  function drawMap() {
    map.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const axes = [make("line", map, { class: "axis", x1: 0, x2: WIDTH }), make("line", map, { class: "axis", y1: 0, y2: HEIGHT })];
    topics.forEach((topic, k) => {
      const dot = make("g", map, { role: "option", id: `dot-${k}`, "aria-selected": "false" });
      const r = radius(topic);
      make("circle", dot, { r });
      make("title", dot, {}, `Topic ${topic.id}: ${percent(topic.share)} of tokens\n${label(topic, 6)}`);
      make("text", dot, {}, topic.id);
      dot.setAttribute("aria-label", `Topic ${topic.id}, ${percent(topic.share)} of tokens: ${label(topic, 5)}`);
      dot.addEventListener("click", () => select(k));
      dots.push(dot);
    });
    map.axes = axes;
  }

  function placeDots() {
    const { at } = place();
    const [x0, y0] = at({ x: 0, y: 0 });
    for (const name of ["y1", "y2"]) map.axes[0].setAttribute(name, y0);
    for (const name of ["x1", "x2"]) map.axes[1].setAttribute(name, x0);
    topics.forEach((topic, k) => {
      const [x, y] = at(topic);
      dots[k].setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    });
    placeNumbers(at);
  }

  /** Show the numbers that have room: of the selected topic, then of the largest. */
  function placeNumbers(at) {
    const shown = [];
    for (const k of [...topics.keys()].sort((a, b) => (b === selected) - (a === selected))) {
      const [x, y] = at(topics[k]), width = 4 + 7 * String(topics[k].id).length, number = dots[k].querySelector("text");
      const wanted = k === selected || topics.length <= 60 || zoom > 2 || radius(topics[k]) > 8;
      const free = wanted && shown.every(([x1, y1, w]) => Math.abs(x - x1) > (width + w) / 2 || Math.abs(y - y1) > 13);
      if (free) shown.push([x, y, width]);
      number.style.display = free ? "" : "none";
    }
  }

  function setZoom(value) {
    zoom = Math.min(64, Math.max(1, value));
    placeDots();
  }

  function markWord(word) {
    map.classList.toggle("has-word", word >= 0);
    topics.forEach((topic, k) => dots[k].classList.toggle("with-word", word >= 0 && topic.words.includes(word)));
  }

  // The selected topic.
  function select(k) {
    selected = (k + topics.length) % topics.length;
    dots.forEach((dot, i) => {
      dot.classList.toggle("selected", i === selected);
      dot.setAttribute("aria-selected", String(i === selected));
    });
    map.appendChild(dots[selected]); // on top of the others
    map.setAttribute("aria-activedescendant", `dot-${selected}`);
    marked = -1;
    markWord(-1);
    placeDots();
    drawTopic();
  }

  function drawTopic() {
    const topic = topics[selected];
    byId("topic-title").textContent = `Topic ${topic.id}`;
    const facts = [`${percent(topic.share, 2)} of tokens`];
    if (topic.documents !== undefined) facts.push(`${count.format(topic.documents)} documents`);
    for (const [name, value] of Object.entries(topic.coherence || {})) facts.push(`${name} ${value.toFixed(3)}`);
    byId("facts").textContent = facts.join(" · ");
    for (const row of byId("list").children) row.classList.toggle("selected", Number(row.dataset.place) === selected);
    drawWords();
    drawNear(topic);
    drawDocuments(topic);
    drawGroups(topic);
    remember();
  }

  function drawWords() {
    const topic = topics[selected], best = bestWords(topic, data.shown), list = byId("words");
    const most = reduce(best, (i) => totals[topic.words[i]], Math.max, 0) || 1;
    list.replaceChildren();
    for (const i of best) {
      const word = topic.words[i], inTopic = topic.counts[i], inAll = totals[word];
      const row = make("li", list);
      const button = make("button", row, { type: "button", "aria-pressed": String(word === marked) }, words[word]);
      button.title = `${words[word]}: ${count.format(inTopic)} of ${count.format(inAll)} tokens. Click to mark its topics`;
      const bar = make("div", row, { class: "bar", "aria-hidden": "true" });
      make("span", bar, { class: "corpus" }).style.width = `${(100 * inAll) / most}%`;
      make("span", bar, { class: "topic" }).style.width = `${(100 * Math.min(inTopic, inAll)) / most}%`;
      make("span", row, { class: "percent" }, percent(Math.min(1, inTopic / inAll), 0));
      button.addEventListener("mouseenter", () => markWord(word));
      button.addEventListener("mouseleave", () => markWord(marked));
      button.addEventListener("click", () => {
        marked = marked === word ? -1 : word;
        for (const other of list.querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
        button.setAttribute("aria-pressed", String(marked === word));
        markWord(marked);
      });
    }
    byId("lambda-value").textContent = lambda.toFixed(2);
  }

  function drawNear(topic) {
    const list = byId("near");
    byId("near-card").hidden = !topic.near.length;
    list.replaceChildren();
    for (const [k, distance] of topic.near) {
      const row = make("li", list);
      const button = make("button", row, { type: "button" });
      make("b", button, {}, `Topic ${topics[k].id}`);
      make("span", button, {}, ` ${label(topics[k], 6)}`);
      make("span", button, { class: "distance" }, `distance ${distance.toFixed(3)}`);
      button.addEventListener("click", () => select(k));
    }
  }

  function drawDocuments(topic) {
    const list = byId("documents");
    byId("documents-card").hidden = !topic.examples.length;
    list.replaceChildren();
    for (const [number, share] of topic.examples) {
      const row = make("li", list);
      make("b", row, {}, `Document ${count.format(number)}`);
      make("span", row, { class: "share" }, `${percent(share, 0)} of its tokens`);
      if (texts[number]) make("div", row, { dir: "auto" }, texts[number]);
    }
  }

  function drawGroups(topic) {
    byId("groups-card").hidden = !groups;
    if (!groups) return;
    const box = byId("groups"), n = groups.names.length, most = Math.max(...topic.groups) || 1;
    box.replaceChildren();
    const plot = make("svg", box, { viewBox: "0 0 600 150", preserveAspectRatio: "none", role: "img" });
    plot.setAttribute("aria-label", groups.names.map((name, g) => `${name}: ${percent(topic.groups[g])}`).join(", "));
    const step = 600 / n;
    topic.groups.forEach((share, g) => {
      const height = (120 * share) / most;
      const bar = make("rect", plot, { x: g * step + step * 0.1, width: step * 0.8, y: 125 - height, height });
      make("title", bar, {}, `${groups.names[g]}: ${percent(share, 2)} in ${count.format(groups.documents[g])} documents`);
    });
    make("line", plot, { x1: 0, x2: 600, y1: 125, y2: 125 });
    const first = groups.names[0], last = groups.names[n - 1];
    make("p", box, { class: "note" }, `${n} groups from ${first || "(none)"} to ${last || "(none)"}; the highest bar is ${percent(most)}`);
  }

  // The list of all topics.
  function drawList() {
    const body = byId("list");
    topics.forEach((topic, k) => {
      const row = make("tr", body, { "data-place": k });
      const button = make("button", make("td", row), { type: "button", "aria-label": `Select topic ${topic.id}` }, topic.id);
      make("td", row, {}, percent(topic.share));
      make("td", row, {}, label(topic, 7));
      row.addEventListener("click", () => select(k));
      row.search = `${topic.id} ${topic.words.map((word) => words[word]).join(" ")}`.toLowerCase();
      button.addEventListener("click", (event) => { event.stopPropagation(); select(k); });
    });
  }

  function filterList(text) {
    const wanted = text.trim().toLowerCase();
    for (const row of byId("list").children) row.hidden = !row.search.includes(wanted);
  }

  // The address remembers the topic and lambda, so that a reload or a link shows the same.
  function remember() {
    try {
      history.replaceState(null, "", `#topic=${topics[selected].id}&lambda=${lambda.toFixed(2)}`);
    } catch { /* some viewers of local files do not allow it */ }
  }

  function recall() {
    const given = new URLSearchParams(location.hash.slice(1));
    const value = Number.parseFloat(given.get("lambda"));
    if (value >= 0 && value <= 1) lambda = value;
    const k = topics.findIndex((topic) => String(topic.id) === given.get("topic"));
    return k < 0 ? 0 : k;
  }

  const shownOf = data.topics_of > topics.length ? `the ${count.format(topics.length)} largest of ` : "";
  byId("summary").textContent = `${shownOf}${count.format(data.topics_of)} topics · ${count.format(data.vocabulary)} words · `
    + `${count.format(Math.round(tokens))} tokens`;
  if (!topics.length) return;
  const first = recall();
  byId("lambda").value = lambda;
  drawMap();
  drawList();
  select(first);
  byId("lambda").addEventListener("input", (event) => { lambda = Number(event.target.value); drawWords(); remember(); });
  byId("previous").addEventListener("click", () => select(selected - 1));
  byId("next").addEventListener("click", () => select(selected + 1));
  byId("zoom-in").addEventListener("click", () => setZoom(zoom * 1.6));
  byId("zoom-out").addEventListener("click", () => setZoom(zoom / 1.6));
  byId("zoom-reset").addEventListener("click", () => setZoom(1));
  byId("filter").addEventListener("input", (event) => filterList(event.target.value));
  map.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key in steps) select(selected + steps[event.key]);
    else if (event.key === "Home") select(0);
    else if (event.key === "End") select(topics.length - 1);
    else if (event.key === "+") setZoom(zoom * 1.6);
    else if (event.key === "-") setZoom(zoom / 1.6);
    else return;
    event.preventDefault();
  });
  window.addEventListener("hashchange", () => { const k = recall(); byId("lambda").value = lambda; select(k); });
})();
