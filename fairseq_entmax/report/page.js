"use strict";
(() => {
  const index = JSON.parse(document.getElementById("index").textContent);
  const packs = document.getElementsByClassName("pack");
  const PAGE = 25;
  const column = Object.fromEntries(index.columns.map((name, i) => [name, i]));
  const [rows, others] = index.rows;
  const $ = (id) => document.getElementById(id);
  const placeOf = new Map(rows.map((row, i) => [row[column.id], i]));
  const COLUMNS = [
    ["id", "id"],
    ["source", "source"],
    ["text", "answer"],
    ["correct", "right"],
    ["certificate", "certificate"],
    ["mass", "covered", "probability that the outputs found cover together"],
    ["probability", "p", "probability of the answer"],
    ["strings", "outputs", "outputs found"],
    ["support", "support", "mean support size of a step"],
    ["length", "length", "symbols of the answer, end of sentence counted"],
    ["rows", "rows", "decoder rows computed"],
  ].filter(([name]) => name !== "correct" || rows[0][column.correct] !== null);

  // All text from the data goes through here as a text node: markup in it stays text.
  function el(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value === true) element.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }
  // What is not quite 0 or 1 is never shown as 0 or 1.
  const number = (value, digits = 3) => {
    if (value > 0 && value < 10 ** -digits) return value.toExponential(1);
    if (value < 1 && +value.toFixed(digits) === 1) return ">" + (1 - 10 ** -digits).toFixed(digits);
    return String(+value.toFixed(digits));
  };
  // Zeros are not recorded: what the file rounded to zero is above it.
  const weightOf = (value, digits) => (value > 0 ? number(value, digits) : "below 1e-6");
  const isRtl = (symbols) => {
    const right = symbols.filter((s) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]|\ud83a/.test(s)).length;
    return right * 2 > symbols.filter((s) => /\p{L}/u.test(s) && !/^<.*>$/.test(s)).length;
  };
  // A combining mark has nothing to stand on by itself.
  const visible = (symbol) => (/^\p{M}/u.test(symbol) ? "\u25cc" + symbol : symbol.trim() ? symbol : "\u2423");
  const symbol = (text) => el("bdi", { class: text === "</s>" ? "symbol muted" : "symbol" }, visible(text));
  const text = (value) => (value ? el("bdi", {}, value) : el("span", { class: "muted" }, "(empty)"));
  function bar(share) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [k, v] of [["class", "bar"], ["viewBox", "0 0 100 10"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]])
      svg.setAttribute(k, v);
    rect.setAttribute("width", 100 * Math.min(share, 1));
    rect.setAttribute("height", 10);
    svg.append(rect);
    return svg;
  }

  // ---------------------------------------------------------------- state: in the address, so that links work

  const START = { id: "", sort: "id", down: "", page: "1", q: "", kind: "", right: "", differs: "" };
  let state = { ...START };
  function readAddress() {
    const address = new URLSearchParams(location.hash.slice(1));
    state = { ...START };
    for (const key of Object.keys(START)) if (address.has(key)) state[key] = address.get(key);
    if (!COLUMNS.some(([name]) => name === state.sort)) state.sort = "id";
  }
  function addressOf(change) {
    const wanted = { ...state, ...change };
    const kept = Object.entries(wanted).filter(([key, value]) => value !== START[key]);
    return "#" + new URLSearchParams(kept);
  }
  const go = (change) => {
    const address = addressOf(change);
    Object.assign(state, change); // the address is read later, and the next change may come before
    if (address !== (location.hash || "#")) location.hash = address;
  };

  // ---------------------------------------------------------------- the list

  const folded = new Map();
  function searched(i) {
    if (!folded.has(i)) {
      const other = others && others[i] ? others[i][column.text] : "";
      folded.set(i, [rows[i][column.source], rows[i][column.text], other].join("\n").normalize("NFC").toLowerCase());
    }
    return folded.get(i);
  }
  function selection() {
    const query = state.q.trim().normalize("NFC").toLowerCase();
    const kept = [];
    rows.forEach((row, i) => {
      if (state.kind && row[column.certificate] !== state.kind) return;
      if (state.right && String(Number(row[column.correct])) !== state.right) return;
      if (state.differs && others && (!others[i] || others[i][column.text] === row[column.text])) return;
      if (query && String(row[column.id]) !== query && !searched(i).includes(query)) return;
      kept.push(i);
    });
    const at = column[state.sort];
    const sign = state.down ? -1 : 1;
    kept.sort((a, b) => {
      const [x, y] = [rows[a][at], rows[b][at]];
      return (x < y ? -sign : x > y ? sign : 0) || a - b;
    });
    return kept;
  }
  function cell(row, name) {
    const value = row[column[name]];
    if (name === "source" || name === "text") return el("td", { class: "words" }, text(value));
    if (name === "correct") return el("td", {}, el("span", { class: value ? "yes" : "no" }, value ? "yes" : "no"));
    if (name === "certificate") return el("td", {}, el("span", { class: "kind " + value }, value));
    return el("td", { class: "number" }, name === "support" ? number(value, 2) : number(value));
  }
  function showHead() {
    $("sentences").tHead.replaceChildren(
      el("tr", {}, ...COLUMNS.map(([name, title, hint]) => {
        const sorted = state.sort === name;
        const down = sorted && !state.down ? "1" : "";
        const mark = sorted ? (state.down ? " \u25bc" : " \u25b2") : "";
        const button = el("button", { type: "button", title: hint, "data-sort": name,
          onclick: () => go({ sort: name, down, page: "1" }) }, title + mark);
        const numbers = typeof rows[0][column[name]] === "number" && name !== "id";
        return el("th", { scope: "col", class: numbers ? "number" : null, "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" }, button);
      }))
    );
  }
  function showList() {
    const focused = document.activeElement && document.activeElement.dataset.sort;
    showHead();
    if (focused) $("sentences").querySelector(`[data-sort="${focused}"]`).focus();
    const kept = selection();
    const pages = Math.max(1, Math.ceil(kept.length / PAGE));
    const page = Math.min(Math.max(1, Math.floor(Number(state.page)) || 1), pages);
    $("sentences").tBodies[0].replaceChildren(...kept.slice((page - 1) * PAGE, page * PAGE).map((i) => {
      const row = rows[i];
      const id = String(row[column.id]);
      const cells = COLUMNS.map(([name]) => (name === "id"
        ? el("th", { scope: "row" }, el("a", { href: addressOf({ id }), "data-id": id }, id))
        : cell(row, name)));
      if (others && others[i] && others[i][column.text] !== row[column.text])
        cells[2].append(el("div", { class: "run1", title: index.names[1] }, text(others[i][column.text])));
      return el("tr", { class: id === state.id ? "current" : null }, ...cells);
    }));
    $("count").textContent = kept.length === rows.length ? `${rows.length} sentences` : `${kept.length} of ${rows.length} sentences`;
    const link = (title, to) => el("button", { type: "button", disabled: to < 1 || to > pages || to === page,
      onclick: () => go({ page: String(to) }) }, title);
    $("pager").replaceChildren(link("First", 1), link("Previous", page - 1), el("span", {}, `page ${page} of ${pages}`),
      link("Next", page + 1), link("Last", pages));
  }
  function connect(id, key, value) {
    const control = $(id);
    if (!control) return () => {};
    control.addEventListener(id === "query" ? "input" : "change", () => go({ [key]: value(control), page: "1" }));
    return () => {
      if (control.type === "checkbox") control.checked = Boolean(state[key]);
      else if (control !== document.activeElement || control.value !== state[key]) control.value = state[key];
    };
  }
  const controls = [
    connect("query", "q", (c) => c.value), connect("kind", "kind", (c) => c.value),
    connect("right", "right", (c) => c.value), connect("differs", "differs", (c) => (c.checked ? "1" : "")),
  ];
  $("controls").addEventListener("submit", (event) => event.preventDefault());

  // ---------------------------------------------------------------- one sentence

  const unpacked = new Map();
  async function detailOf(place) {
    const number = Math.floor(place / index.packed);
    if (!unpacked.has(number)) {
      const bytes = Uint8Array.from(atob(packs[number].textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      unpacked.clear(); // one pack in memory is enough
      unpacked.set(number, await new Response(stream).json());
    }
    return unpacked.get(number)[place % index.packed];
  }
  const missing = (hypothesis, flag, note = "") => hypothesis.left_out
    ? el("p", { class: "missing" }, `Only the first ${hypothesis.left_out} outputs of a sentence have this on the page.`)
    : el("p", { class: "missing" }, "Not in this file: decode with ", el("code", {}, flag), "." + note);

  function heatMap(hypothesis, symbols) {
    const steps = hypothesis.attention;
    if (!steps) return missing(hypothesis, "--certificate-attention");
    let width = symbols ? symbols.length : 0;
    for (const step of steps) for (const [i] of step) width = Math.max(width, i + 1);
    const names = Array.from({ length: width }, (_, i) => (symbols && symbols[i] !== undefined ? symbols[i] : String(i)));
    const readout = el("p", { class: "readout", "aria-live": "polite" }, "Point at a cell, or move with the arrow keys.");
    const head = el("tr", {}, el("td"), ...names.map((name) =>
      el("th", { scope: "col", class: [...name].length > 2 ? "long" : null }, symbol(name))));
    const body = steps.map((step, t) => {
      const weights = new Map(step);
      const cells = names.map((_, i) => {
        const td = el("td", { tabindex: "-1", "data-t": t, "data-i": i });
        if (weights.has(i)) {
          td.className = "on";
          td.style.setProperty("--w", weights.get(i));
          td.append(el("span", {}, weightOf(weights.get(i))));
        } else td.append(el("span", { class: "away" }, "0"));
        return td;
      });
      return el("tr", {}, el("th", { scope: "row" }, symbol(hypothesis.tokens[t] ?? String(t))), ...cells);
    });
    const table = el("table", { class: "heat", dir: isRtl(names) ? "rtl" : "ltr" },
      el("thead", {}, head), el("tbody", {}, ...body));
    const say = (td) => {
      const step = new Map(steps[td.dataset.t]);
      const weight = step.get(Number(td.dataset.i));
      readout.replaceChildren(symbol(hypothesis.tokens[td.dataset.t] ?? td.dataset.t), " looks at ",
        symbol(names[td.dataset.i]), ": " + (weight === undefined ? "exactly 0" : weightOf(weight, 4)));
    };
    const cellAt = (t, i) => table.querySelector(`td[data-t="${t}"][data-i="${i}"]`);
    let current = cellAt(0, 0);
    if (current) current.tabIndex = 0;
    table.addEventListener("mouseover", (event) => event.target.closest("td[data-t]") && say(event.target.closest("td")));
    table.addEventListener("focusin", (event) => {
      const td = event.target.closest("td[data-t]");
      if (!td) return;
      current.tabIndex = -1;
      current = td;
      current.tabIndex = 0;
      say(td);
    });
    table.addEventListener("keydown", (event) => {
      const forward = table.dir === "rtl" ? -1 : 1;
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -forward], ArrowRight: [0, forward] }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = cellAt(Number(current.dataset.t) + step[0], Number(current.dataset.i) + step[1]);
      if (next) next.focus();
    });
    return el("div", {},
      symbols ? null : el("p", { class: "muted" }, "Columns are source positions: the file has no source symbols for this sentence."),
      el("div", { class: "scroll" }, table), readout);
  }

  function stepTable(hypothesis) {
    const widest = hypothesis.support.reduce((most, size) => Math.max(most, size), 1);
    const lines = hypothesis.tokens.map((token, t) => {
      const size = hypothesis.support[t] ?? 0;
      const candidates = el("td", { class: "candidates" });
      const step = hypothesis.candidates && hypothesis.candidates[t];
      for (const [name, p] of step ? step.top : [])
        candidates.append(el("span", { class: name === token ? "candidate taken" : "candidate" }, symbol(name), " ", p > 0 ? number(p) : "below 1e-9"));
      if (step && step.rest) candidates.append(el("span", { class: "muted" }, `and ${step.rest[0]} more: ${number(step.rest[1])}`));
      return el("tr", {}, el("th", { scope: "row" }, String(t + 1)), el("td", {}, symbol(token)),
        el("td", { class: "size" }, bar(size / widest), " " + size), hypothesis.candidates ? candidates : null);
    });
    const titles = ["step", "symbol", "support", ...(hypothesis.candidates ? ["candidates with their probabilities"] : [])];
    return el("div", {},
      el("div", { class: "scroll" }, el("table", { class: "steps" },
        el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, ...lines))),
      hypothesis.candidates ? null : missing(hypothesis, "--certificate-candidates", " (A dense model has none: every symbol is possible.)"));
  }

  function tree(detail) {
    const branch = ([label, p, children]) => {
      const line = el("div", { class: children.length ? "node" : "node end" }, el("bdi", { class: "symbol" }, label), " ", el("span", { class: "muted" }, number(p)));
      line.style.setProperty("--w", p);
      return el("li", {}, line, children.length ? el("ul", {}, ...children.map(branch)) : null);
    };
    const all = detail.tree.map(branch);
    if (detail.unlisted)
      all.push(el("li", {}, el("div", { class: "node rest" }, "not listed ", el("span", { class: "muted" }, number(detail.unlisted)))));
    const labels = detail.hypotheses[0].tokens;
    return el("div", { class: "scroll" }, el("ul", { class: "tree", dir: isRtl(labels) ? "rtl" : "ltr" }, ...all));
  }

  function runDetail(detail, run, heading) {
    const section = el("section", { class: "run" + run });
    if (!detail) {
      section.append(heading, el("p", { class: "missing" }, "This sentence is not in the file."));
      return section;
    }
    const parts = el("div");
    const show = (k) => {
      const hypothesis = detail.hypotheses[k];
      parts.replaceChildren(
        el("h4", {}, "Attention"), el("p", { class: "muted" }, "Source across, output down; blank is exactly zero."),
        heatMap(hypothesis, detail.symbols),
        el("h4", {}, "Support along the output"), stepTable(hypothesis));
    };
    const title = (h, k) => `${k + 1}. ${h.text || "(empty)"}  (${h.logprob === null ? "probability 0" : "p " + number(h.p)})`;
    const select = el("select", { dir: "auto", onchange: () => show(Number(select.value)) },
      ...detail.hypotheses.map((h, k) => el("option", { value: k }, title(h, k))));
    const outputs = detail.listed < detail.found ? `The ${detail.listed} best of the ${detail.found} outputs found`
      : detail.complete ? "All outputs" : "Outputs found";
    section.append(heading, el("p", { class: "answer" }, text(detail.hypotheses[0].text)),
      el("p", {}, detail.words), el("h4", {}, outputs + ", with their probabilities"), tree(detail),
      el("p", { class: "choice" }, el("label", {}, "Shown below: ", select)), parts);
    show(0);
    return section;
  }

  let shown = "";
  async function showDetail(focus) {
    const section = $("detail");
    const place = placeOf.get(Number(state.id));
    if (state.id === "" || place === undefined) {
      section.hidden = true;
      shown = "";
      return;
    }
    if (shown === state.id) return;
    shown = state.id;
    const wanted = state.id;
    let details;
    try {
      details = await detailOf(place);
    } catch (error) {
      section.hidden = false;
      section.replaceChildren(el("p", { class: "missing" }, `This browser cannot unpack the sentence (${error.message}).`));
      return;
    }
    if (wanted !== state.id) return;
    const row = rows[place];
    const kept = selection();
    const at = kept.indexOf(place);
    const step = (title, to) => el("button", { type: "button", disabled: at < 0 || to < 0 || to >= kept.length,
      onclick: () => go({ id: String(rows[kept[to]][column.id]), page: String(Math.floor(to / PAGE) + 1) }) }, title);
    const reference = details[0] && details[0].reference;
    const heading = (run) => (others ? el("h3", {}, el("bdi", {}, index.names[run])) : el("span"));
    const title = el("h2", { id: "detail-title", tabindex: "-1" }, `Sentence ${state.id} `, el("span", { class: "kind " + row[column.certificate] }, row[column.certificate]));
    section.replaceChildren(
      el("div", { class: "head" }, title,
        el("div", { class: "steps" }, step("Previous", at - 1), step("Next", at + 1), el("button", { type: "button", onclick: close }, "Close"))),
      el("dl", {}, el("dt", {}, "Source"), el("dd", {}, text(row[column.source])),
        ...(reference === undefined ? [] : [el("dt", {}, "Reference"), el("dd", {}, text(reference))])),
      el("div", { class: others ? "twins" : "" }, ...details.map((detail, run) => runDetail(detail, run, heading(run)))));
    section.hidden = false;
    if (focus) {
      section.scrollIntoView();
      title.focus({ preventScroll: true });
    }
    document.body.dataset.shown = state.id;
  }
  function close() {
    const id = state.id;
    go({ id: "" });
    setTimeout(() => ($("sentences").querySelector(`[data-id="${CSS.escape(id)}"]`) || $("query")).focus());
  }
  $("detail").addEventListener("keydown", (event) => event.key === "Escape" && close());

  function show(focus) {
    readAddress();
    controls.forEach((control) => control());
    showList();
    showDetail(focus);
  }
  $("skip").addEventListener("click", (event) => {
    event.preventDefault();
    $("list").focus();
  });
  window.addEventListener("hashchange", () => show(true));
  if (!location.hash && index.first !== null) history.replaceState(null, "", "#id=" + index.first);
  show(Boolean(location.hash) && location.hash !== "#id=" + index.first);
  document.body.dataset.ready = Math.round(performance.now());
})();
