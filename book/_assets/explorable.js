// Figures whose sliders choose among recorded curves. All numbers are the page's own: nothing is computed here
// but where a point is drawn, and between two recorded points there is a straight line.
(() => {
  "use strict";
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const WAIT = 500; // ms after the last move until the values are read aloud

  function make(name, attributes = {}, parent = null, text = "") {
    const inSvg = ["svg", "path", "line", "text", "circle"].includes(name);
    const node = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  function written(value) {
    const size = Math.abs(value);
    if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(3))).replace("-", "−");
    const [digits, power] = value.toExponential(2).split("e");
    const raised = [...String(Number(power))].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("");
    return `${Number(digits)} × 10${raised}`.replace("-", "−").replace(/^1 × /, "");
  }

  // Ticks of an axis from low to high: round numbers, on a logarithmic one at least the powers of ten.
  function ticksOf(low, high, log, most) {
    const found = [];
    if (log) {
      const digits = high - low < 1.5 ? [1, 2, 5] : high - low < 3.5 ? [1, 3] : [1];
      const every = Math.ceil((high - low) / most / 2);
      for (let power = Math.floor(low); power <= high; power += every)
        for (const digit of digits) found.push(digit * 10 ** power);
      return found.filter((v) => Math.log10(v) >= low && Math.log10(v) <= high);
    }
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((s) => s >= rough);
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) found.push(n * step);
    return found;
  }

  // From a value to a place on the page, the same for all settings, so that what moves is the curve.
  function axisOf(values, log, margin, most) {
    const to = log ? Math.log10 : Number;
    const finite = values.flat(9).filter((v) => v !== null).map(to);
    let low = Math.min(...finite), high = Math.max(...finite);
    const apart = Math.max(1, Math.abs(low) / 10); // beside a large number, 1 is lost in rounding
    if (low === high) [low, high] = [low - apart, high + apart];
    const extra = margin * (high - low);
    [low, high] = [low - extra, high + extra];
    return { ticks: ticksOf(low, high, log, most), place: (v) => (to(v) - low) / (high - low) };
  }

  function start(figure, number) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const view = make("div", { class: "explorable-view" });
    const legend = make("div", { class: "explorable-legend", "aria-hidden": "true" }, view);
    const words = `explorable-${number}`;
    const label = (text, side) => make("div", { class: `explorable-label ${side}`, "aria-hidden": "true" }, view, text);
    label(data.labels[1], "start");
    const svg = make("svg", { role: "img", "aria-label": `${data.labels[1]}, by ${data.labels[0]}`, "aria-describedby": words }, view);
    label(data.labels[0], "end");
    const sliders = make("div", { class: "explorable-sliders" }, view);
    const said = make("output", { id: words, class: "explorable-words", "aria-live": "polite" }, view);
    const chosen = data.sliders.map((slider) => slider.start);
    const style = (i) => `stroke: var(--line-${i})`;
    const current = () => data.curves.map(({ name, y }) => ({ name, y: chosen.reduce((list, i) => (Array.isArray(list[0]) ? list[i] : list), y) }));

    for (const [i, curve] of data.curves.entries()) {
      const entry = make("span", {}, legend);
      const swatch = make("svg", { width: 30, height: 10 }, entry);
      make("path", { d: "M0 5H30", class: "line", style: style(i), "stroke-dasharray": DASHES[i] }, swatch);
      entry.append(curve.name);
    }

    function draw() {
      const width = Math.max(view.clientWidth, 240), height = Math.round(Math.min(290, 60 + 0.42 * width));
      const y = axisOf(data.curves.map((c) => c.y), data.log.includes("y"), 0.04, 6);
      const x = axisOf(data.x, data.log.includes("x"), 0.02, width < 480 ? 5 : 8);
      const left = 14 + 7.5 * Math.max(...y.ticks.map((t) => written(t).length)), right = width - 8;
      const top = 6, bottom = height - 22;
      const px = (v) => left + x.place(v) * (right - left), py = (v) => bottom - y.place(v) * (bottom - top);
      svg.replaceChildren();
      for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
      for (const tick of y.ticks) {
        make("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }, svg);
        make("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, svg, written(tick));
      }
      for (const tick of x.ticks) {
        make("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }, svg);
        make("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, svg, written(tick));
      }
      make("path", { class: "axis", fill: "none", d: `M${left} 0V${bottom}H${right}` }, svg);
      for (const [i, curve] of current().entries()) {
        let d = "", pen = "M";
        for (const [k, value] of curve.y.entries()) {
          if (value === null || data.x[k] === null) pen = "M";
          else {
            d += `${pen}${px(data.x[k]).toFixed(1)} ${py(value).toFixed(1)}`;
            pen = "L";
            if (data.x.length <= 20)
              make("circle", { cx: px(data.x[k]), cy: py(value), r: 3.4, style: `fill: var(--line-${i})` }, svg);
          }
        }
        make("path", { class: "line", d, style: style(i), "stroke-dasharray": DASHES[i] }, svg);
      }
    }

    function describe() {
      const settings = data.sliders.map((slider, i) => `${slider.name} ${slider.values[chosen[i]]}`).join(", ");
      const lines = current().map(({ name, y }) => {
        const drawn = y.map((value, k) => [value, data.x[k]]).filter((point) => !point.includes(null));
        if (!drawn.length) return `${name}: nothing`;
        const top = drawn.reduce((best, point) => (point[0] > best[0] ? point : best));
        const points = new Set([drawn[0], top, drawn.at(-1)]);
        return `${name}: ${[...points].map(([value, at]) => `${written(value)} at ${written(at)}`).join(", ")}`;
      });
      said.textContent = `${settings}. ${data.labels[1]}, by ${data.labels[0]}. ${lines.join("; ")}.`;
    }

    let timer = 0;
    for (const [i, slider] of data.sliders.entries()) {
      const row = make("div", {}, sliders), id = `${words}-${i}`;
      make("label", { for: id }, row, slider.name);
      // The slider itself says its value; told by both, a reader would hear it twice.
      const value = make("output", { for: id, "aria-live": "off" }, row);
      const input = make("input", { id, type: "range", min: 0, max: slider.values.length - 1, step: 1 }, row);
      input.value = slider.start;
      const show = () => {
        chosen[i] = Number(input.value);
        value.textContent = slider.values[chosen[i]];
        input.setAttribute("aria-valuetext", value.textContent);
      };
      show();
      input.addEventListener("input", () => {
        show();
        draw();
        clearTimeout(timer);
        timer = setTimeout(describe, WAIT);
      });
    }
    figure.prepend(view);
    figure.classList.add("live");
    let width = 0;
    new ResizeObserver(() => {
      if (view.clientWidth && view.clientWidth !== width) draw((width = view.clientWidth));
    }).observe(view);
    draw();
    describe();
  }

  document.querySelectorAll("figure.explorable").forEach((figure, number) => {
    try {
      start(figure, number);
    } catch (error) {
      console.error(error); // the figure of the run stays, and the other figures are started
    }
  });
})();
