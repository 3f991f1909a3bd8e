"use strict";
// The page's script: theme, filters, and figures that are drawn when they come into view.
const holdfast = (() => {
  const colours = { light: "LIGHT COLOURS", dark: "DARK COLOURS" };
  const scales = { light: "LIGHT SCALE", dark: "DARK SCALE" };
  const dashes = { solid: "solid", dash: "dash", dot: "dot" };
  const data = new Map(); // experiment -> figures
  const waiting = new Map(); // experiment -> promise of its figures
  const drawn = new Map(); // plot element -> panel
  const legends = new Map(); // element that holds a legend -> panels that it is for
  const hidden = new WeakMap(); // figure -> names that were switched off
  const root = document.documentElement;

  // before the first paint, so that a dark page does not flash white
  const chosen = read("holdfast-theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(chosen || (system.matches ? "dark" : "light"));
  system.addEventListener("change", (event) => { if (!read("holdfast-theme")) setTheme(event.matches ? "dark" : "light"); });

  function read(key) { try { return localStorage.getItem(key); } catch { return null; } }
  function keep(key, value) { try { localStorage.setItem(key, value); } catch { /* some browsers keep nothing for files */ } }

  function setTheme(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.setAttribute("aria-pressed", String(theme === "dark"));
      button.textContent = theme === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
    }
    for (const [element, panel] of drawn) draw(element, panel);
    for (const [element, panels] of legends) legend(element, panels);
  }

  function script(source) {
    return new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = source;
      element.onload = resolve;
      element.onerror = () => reject(new Error(`cannot load ${source}`));
      document.head.append(element);
    });
  }

  let library = null;
  const plotly = () => (library ??= script("assets/plotly.min.js"));

  function figures(experiment) {
    if (!waiting.has(experiment)) {
      const version = document.querySelector("link[rel=stylesheet]").href.split("?")[1] || "";
      waiting.set(experiment, script(`data/${encodeURIComponent(experiment)}.js?${version}`).then(() => data.get(experiment)));
    }
    return waiting.get(experiment);
  }

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const channels = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  function colour(raw) {
    if (raw.scale === undefined) { const set = colours[root.dataset.theme]; return set[(raw.slot || 0) % set.length]; }
    const stops = scales[root.dataset.theme], place = raw.scale * (stops.length - 1), k = Math.min(Math.floor(place), stops.length - 2);
    const [from, to] = [channels(stops[k]), channels(stops[k + 1])];
    return "#" + from.map((c, j) => Math.round(c + (place - k) * (to[j] - c)).toString(16).padStart(2, "0")).join("");
  }
  const faint = (hex, alpha) => `rgba(${channels(hex).join(",")},${alpha})`;

  // plotly reads links and other tags in any text of a figure, which comes from a saved result
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // scripts that Unicode has no characters for stand in braces: e^{−t/2}, G_{f}; the innermost first
  function scripted(text) {
    const raised = plain(text);
    for (let made = raised, before; ; ) {
      before = made;
      made = made.replace(/\^\{([^{}]*)\}/g, "<sup>$1</sup>").replace(/_\{([^{}]*)\}/g, "<sub>$1</sub>");
      if (made === before) return made;
    }
  }

  function trace(raw) {
    const ink = colour(raw), name = scripted(raw.name);
    if (raw.type === "heatmap") {
      return { ...raw, name, colorscale: "Viridis", colorbar: { title: { text: name, side: "right" }, thickness: 12, outlinewidth: 0 } };
    }
    if (raw.type === "bar") return { ...raw, name, x: raw.x.map(scripted), marker: { color: ink }, error_y: raw.error_y && { ...raw.error_y, color: style("--ink"), thickness: 1.2 } };
    const common = { type: raw.type, name, x: raw.x, y: raw.y, legendgroup: raw.legendgroup };
    if (raw.role === "band") {
      return { ...common, fill: "toself", fillcolor: faint(ink, 0.16), line: { width: 0 }, mode: "lines", showlegend: false, hoverinfo: "skip" };
    }
    if (raw.role === "beyond") {
      return { ...common, mode: "markers", marker: { symbol: "triangle-up", color: ink, size: 8 }, showlegend: false,
        hovertemplate: "infinite", cliponaxis: false };
    }
    return { ...common, mode: raw.mode, showlegend: raw.showlegend, error_y: raw.error_y && { ...raw.error_y, color: ink, thickness: 1.2 },
      line: { color: ink, width: raw.x.length > 2000 ? 1 : 2, dash: dashes[raw.dash] || "solid" }, marker: { color: ink, size: raw.mode === "markers" ? 8 : 5 } };
  }

  const narrow = () => window.matchMedia("(max-width: 40rem)").matches;

  // powers of ten alone where there are enough of them; else 1, 2 and 5 in full: by itself plotly writes a crowd of tiny digits
  function ticks(spec, values) {
    if (!spec.log) {
      const most = [...values, ...(spec.range || [])].reduce((a, v) => (Number.isFinite(v) ? Math.max(a, Math.abs(v)) : a), 0);
      return most >= 1e3 && most < 1e6 ? { exponentformat: "none", separatethousands: true } : {};
    }
    const seen = spec.range ? spec.range.map((v) => 10 ** v) : values.filter((v) => v > 0);
    const high = seen.reduce((a, b) => Math.max(a, b), 0), low = seen.reduce((a, b) => Math.min(a, b), Infinity), span = Math.log10(high / low);
    if (!(span > 1e-6)) return { dtick: 1 }; // one value: plotly shows a decade to each side of it
    const enough = Math.floor(Math.log10(high)) - Math.ceil(Math.log10(low)) >= 2 || (span > 1.5 && low < 1e-3);
    if (enough) return { dtick: Math.max(1, Math.ceil(span / (narrow() ? 5 : 6))) };
    return { dtick: span > 0.5 ? "D2" : undefined, tickformat: low < 1e-3 ? "~e" : high >= 1e3 ? "~s" : "~r" };
  }

  function axis(spec, values) {
    return { title: { text: scripted(spec.label), standoff: narrow() ? 4 : 8, font: { size: narrow() ? 11 : 12 } }, type: spec.log ? "log" : undefined, range: spec.range || undefined,
      gridcolor: style("--line"), linecolor: style("--line"), zeroline: false, exponentformat: "power", showexponent: "all",
      ...ticks(spec, values), automargin: true, tickfont: { size: narrow() ? 11 : 12 }, ticks: "outside", ticklen: 4, tickcolor: "rgba(0,0,0,0)" };
  }

  function layout(panel) {
    const top = panel.traces.flatMap((raw) => raw.y || []).reduce((a, b) => Math.max(a, b), -Infinity);
    const rules = panel.rules.map((rule) => ({ type: "line", line: { color: style("--soft"), width: 1, dash: "dot" },
      // a name above the highest line of a panel would be cut off
      label: { text: scripted(rule.label), font: { size: 11 }, yanchor: rule.y !== null && rule.y >= top ? "top" : "bottom" },
      ...(rule.x === null ? { xref: "paper", x0: 0, x1: 1, y0: rule.y, y1: rule.y } : { yref: "paper", y0: 0, y1: 1, x0: rule.x, x1: rule.x }) }));
    const along = (name) => panel.traces.flatMap((raw) => raw[name] || []);
    const y = axis(panel.y, along("y"));
    if (panel.equal) Object.assign(y, { scaleanchor: "x", scaleratio: 1 });
    const [low, high] = (panel.y.range || [-Infinity, Infinity]).map((v) => (panel.y.log ? 10 ** v : v));
    const seen = (raw) => raw.type === "heatmap" || (raw.role !== "beyond" && raw.y.some((v) => v !== null && v >= low && v <= high));
    const empty = !panel.traces.some(seen), infinite = panel.traces.some((raw) => raw.role === "beyond");
    const note = { text: infinite ? "every value is infinite" : "nothing to draw here", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { color: style("--soft") } };
    return { xaxis: axis(panel.x, along("x")), yaxis: y, shapes: rules, annotations: empty ? [note] : [], hovermode: panel.hover, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style("--sans"), size: 12, color: style("--ink") }, margin: { l: 60, r: 12, t: 8, b: 48 },
      showlegend: false, colorway: colours[root.dataset.theme],
      hoverlabel: { bgcolor: style("--raised"), bordercolor: style("--line"), font: { color: style("--ink") } }, dragmode: "zoom" };
  }

  function draw(element, panel) {
    drawn.set(element, panel);
    if (panel.picture) return picture(element, panel);
    element.classList.toggle("square", panel.equal);
    // without a pointer that hovers plotly shows its buttons always, on top of the figure
    const options = { responsive: true, displaylogo: false, displayModeBar: window.matchMedia("(hover: none)").matches ? false : "hover", modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
    const off = hidden.get(element.closest("figure"));
    const traces = panel.traces.map((raw) => ({ ...trace(raw), visible: !off?.has(raw.name) }));
    return Plotly.react(element, traces, layout(panel), options);
  }

  // what a line looks like: two lines of one look and two names cannot share a legend
  const look = (raw) => [raw.scale ?? raw.slot, raw.dash, raw.mode === "markers", raw.type].join();
  const named = (panels) => panels.flatMap((p) => p.traces || []).filter((raw) => raw.name && raw.showlegend !== false && !raw.role && raw.type !== "heatmap");

  function sharedLegend(panels) {
    const looks = new Map(), names = new Map();
    for (const raw of named(panels)) {
      if ((looks.get(raw.name) ?? look(raw)) !== look(raw) || (names.get(look(raw)) ?? raw.name) !== raw.name) return false;
      looks.set(raw.name, look(raw));
      names.set(look(raw), raw.name);
    }
    return true;
  }

  // one legend per figure, above its panels, where it can speak for all of them; else one above each panel
  function placeLegends(figure, panels) {
    const box = figure.querySelector(".panels");
    const places = sharedLegend(panels) ? [[box, box, panels]] : [...figure.querySelectorAll(".panel")].map((p, k) => [p, p.querySelector(".plot"), [panels[k]]]);
    for (const [, before, some] of places) {
      const list = document.createElement("ul");
      list.className = "legend";
      before.before(list);
      legends.set(list, some);
      legend(list, some);
    }
  }

  function legend(list, panels) {
    const figure = list.closest("figure");
    if (!hidden.has(figure)) hidden.set(figure, new Set());
    const off = hidden.get(figure);
    const entries = new Map(named(panels).map((raw) => [raw.name, raw]));
    list.replaceChildren(...[...entries.values()].sort((a, b) => (a.scale ?? 0) - (b.scale ?? 0)).map((raw) => {
      const item = document.createElement("li"), button = document.createElement("button"), swatch = document.createElement("span");
      swatch.className = raw.type === "bar" ? "bar" : raw.mode === "markers" ? "markers" : raw.dash || "";
      swatch.style.color = colour(raw);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!off.has(raw.name)));
      const label = document.createElement("bdi");
      label.innerHTML = scripted(raw.name); // escaped but for its scripts
      button.append(swatch, label);
      button.addEventListener("click", () => {
        if (!off.delete(raw.name)) off.add(raw.name);
        button.setAttribute("aria-pressed", String(!off.has(raw.name)));
        for (const plot of figure.querySelectorAll(".plot")) if (drawn.has(plot)) draw(plot, drawn.get(plot));
      });
      item.append(button);
      return item;
    }));
    // one kind of bars is named by the axis
    list.hidden = entries.size === 0 || (entries.size === 1 && [...entries.values()][0].type === "bar");
  }

  function picture(element, panel) {
    const { rows, columns, grey } = panel.picture;
    const canvas = document.createElement("canvas");
    canvas.width = columns;
    canvas.height = rows;
    const image = new ImageData(columns, rows);
    grey.forEach((level, k) => image.data.set([level, level, level, 255], 4 * k));
    canvas.getContext("2d").putImageData(image, 0, 0);
    element.replaceChildren(canvas);
  }

  async function show(figure) {
    const found = (await figures(figure.dataset.experiment)).find((f) => f.name === figure.dataset.figure);
    const panels = figure.dataset.panels.split(" ").map((k) => found.panels[Number(k)]);
    if (panels.some((panel) => !panel.picture)) {
      await plotly();
      if (!figure.querySelector(".legend")) placeLegends(figure, panels);
    }
    const plots = figure.querySelectorAll(".plot");
    for (const [k, panel] of panels.entries()) await draw(plots[k], panel);
    figure.dataset.drawn = "true";
  }

  // a table in place of the figure, for those who cannot see it or want its numbers
  async function numbers(details) {
    if (details.querySelector("table")) return;
    const figure = details.closest("figure");
    const found = (await figures(figure.dataset.experiment)).find((f) => f.name === figure.dataset.figure);
    for (const panel of found.panels) {
      if (panel.picture) continue;
      for (const raw of panel.traces) if (raw.role !== "band" && raw.role !== "beyond" && raw.type !== "heatmap") details.append(table(panel, raw));
    }
    if (!details.querySelector("table")) details.append("This figure shows pixels or a map: its numbers are in the raw data.");
  }

  function table(panel, raw) {
    const most = 40;
    const every = Math.ceil(raw.x.length / most);
    const box = document.createElement("div");
    box.className = "scroll";
    box.tabIndex = 0;
    const made = document.createElement("table");
    const count = every > 1 ? `${Math.ceil(raw.x.length / every)} of ${raw.x.length} points` : "";
    made.createCaption().innerHTML = [panel.plain, raw.name, count].filter(Boolean).map(scripted).join(", ");
    const head = made.createTHead().insertRow();
    for (const label of [panel.x.label, panel.y.label]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.innerHTML = scripted(label);
      head.append(cell);
    }
    const infinite = new Set(panel.traces.filter((other) => other.role === "beyond" && other.name === raw.name).flatMap((other) => other.x));
    const body = made.createTBody();
    for (let k = 0; k < raw.x.length; k += every) {
      const row = body.insertRow();
      for (const value of [raw.x[k], raw.y[k]]) row.insertCell().textContent = value !== null ? String(value) : infinite.has(raw.x[k]) ? "∞" : "–";
    }
    box.append(made);
    return box;
  }

  function filter() {
    const status = document.querySelector(".filters [data-status][aria-pressed=true]").dataset.status;
    const paper = document.getElementById("paper")?.value || "";
    const words = document.getElementById("search").value.trim().toLowerCase();
    let shown = 0;
    for (const claims of document.querySelectorAll(".claims")) {
      let any = false;
      for (const row of claims.tBodies[0].rows) {
        const fits = (!status || row.dataset.status === status) && (!paper || claims.dataset.paper === paper) && (!words || row.textContent.toLowerCase().includes(words));
        row.hidden = !fits;
        any ||= fits;
        shown += fits;
      }
      const list = claims.closest("details");
      list.hidden = !any;
      if (status || paper || words) list.open = true;
    }
    const all = document.querySelectorAll(".claims tbody tr").length;
    document.getElementById("shown").textContent = shown === all ? "" : `${shown} of ${all} claims shown`;
  }

  function start() {
    setTheme(root.dataset.theme);
    // a phone has the list of experiments folded, above the text
    const contents = document.querySelector(".contents details"), phone = window.matchMedia("(max-width: 40rem)");
    contents.open = !phone.matches;
    phone.addEventListener("change", () => { contents.open = !phone.matches; });
    contents.addEventListener("click", (event) => { if (phone.matches && event.target.closest("a")) contents.open = false; });
    for (const link of document.querySelectorAll("a[data-status]")) {
      link.addEventListener("click", () => document.querySelector(`.filters [data-status="${link.dataset.status}"]`).click());
    }
    document.getElementById("theme").addEventListener("click", () => {
      const theme = root.dataset.theme === "dark" ? "light" : "dark";
      keep("holdfast-theme", theme);
      setTheme(theme);
    });
    for (const button of document.querySelectorAll(".filters [data-status]")) {
      button.addEventListener("click", () => {
        for (const other of document.querySelectorAll(".filters [data-status]")) other.setAttribute("aria-pressed", String(other === button));
        filter();
      });
    }
    document.getElementById("paper")?.addEventListener("change", filter);
    document.getElementById("search").addEventListener("input", filter);
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); show(entry.target); }
    }, { rootMargin: "400px" });
    for (const figure of document.querySelectorAll("figure")) seen.observe(figure);
    for (const details of document.querySelectorAll("details.numbers")) details.addEventListener("toggle", () => { if (details.open) numbers(details); });
    window.addEventListener("beforeprint", () => document.querySelectorAll("figure").forEach((figure) => show(figure)));
  }

  document.addEventListener("DOMContentLoaded", start);
  return { receive: (experiment, list) => data.set(experiment, list) };
})();
