// Figures whose sliders choose among recorded curves. All numbers are the page's own: nothing is computed here
// but where a point is drawn, and between two recorded points there is a straight line.
(() => {
  "use strict";
  const { make, written } = figures;
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

  // Ticks of an axis from low to high: round numbers, on a logarithmic one powers of ten and what divides them, if any.
  function ticksOf(low, high, log, most) {
    const found = [];
    if (log) {
      const digits = high - low < 1.5 ? [1, 2, 5] : high - low < 3.5 ? [1, 3] : [1];
      const every = Math.ceil((high - low) / most / 2);
      for (let power = Math.floor(low); power <= high; power += every)
        for (const digit of digits) found.push(digit * 10 ** power);
      const within = found.filter((v) => Math.log10(v) >= low && Math.log10(v) <= high);
      return within.length ? within : ticksOf(10 ** low, 10 ** high, false, most); // no power of ten lies between
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

  figures.each(".moving-curves", (stage, data) => {
    const gap = (v) => (Array.isArray(v) ? v.map(gap) : v !== null && v > 0 ? v : null); // a logarithm has no place for 0
    if (data.log.includes("x")) data.x = gap(data.x);
    if (data.log.includes("y"))
      for (const curve of data.curves)
        for (const lists of ["y", "low", "high"]) if (curve[lists]) curve[lists] = gap(curve[lists]);
    const { svg, drawing, view } = stage;
    const legend = make("div", { class: "moving-legend", "aria-hidden": "true" });
    const label = (text, side) => make("div", { class: `moving-label ${side}`, "aria-hidden": "true" }, null, text);
    svg.before(legend, label(data.labels[1], "start"));
    svg.after(label(data.labels[0], "end"));
    svg.setAttribute("aria-label", `${data.labels[1]}, by ${data.labels[0]}`);
    const chosen = data.sliders.map(({ name, values, start }) => stage.slider(name, values, start));
    const style = (i) => `stroke: var(--line-${i})`;
    const pick = (lists) => chosen.reduce((list, place) => (Array.isArray(list[0]) ? list[place()] : list), lists);
    const current = () => data.curves.map(({ name, y, low, high }) => ({ name, y: pick(y), low: low && pick(low), high: high && pick(high) }));

    for (const [i, curve] of data.curves.entries()) {
      const entry = make("span", {}, legend);
      const swatch = make("svg", { width: 30, height: 10 }, entry);
      make("path", { d: "M0 5H30", class: "line", style: style(i), "stroke-dasharray": DASHES[i] }, swatch);
      entry.append(curve.name);
    }

    stage.draw = (width) => {
      const height = Math.round(Math.min(290, 60 + 0.42 * width));
      const y = axisOf(data.curves.map((c) => [c.y, c.low ?? [], c.high ?? []]), data.log.includes("y"), 0.04, 6);
      const x = axisOf(data.x, data.log.includes("x"), 0.02, width < 480 ? 5 : 8);
      const left = 14 + 7.5 * Math.max(...y.ticks.map((t) => written(t).length)), right = width - 8;
      const top = 6, bottom = height - 22;
      const px = (v) => left + x.place(v) * (right - left), py = (v) => bottom - y.place(v) * (bottom - top);
      const point = (k, value) => `${px(data.x[k]).toFixed(1)} ${py(value).toFixed(1)}`;
      stage.size(height);
      for (const tick of y.ticks) {
        make("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }, drawing);
        make("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, drawing, written(tick));
      }
      for (const tick of x.ticks) {
        make("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }, drawing);
        make("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, drawing, written(tick));
      }
      make("path", { class: "axis", fill: "none", d: `M${left} 0V${bottom}H${right}` }, drawing);
      for (const [i, curve] of current().entries()) {
        if (curve.low) {
          const pieces = [[]]; // a band has the gaps that its line has
          for (const k of data.x.keys())
            if ([data.x[k], curve.low[k] ?? null, curve.high[k] ?? null].includes(null)) pieces.push([]);
            else pieces.at(-1).push(k);
          for (const piece of pieces.filter((each) => each.length)) {
            const lower = piece.map((k) => point(k, curve.low[k])), upper = piece.map((k) => point(k, curve.high[k])).reverse();
            make("path", { class: "band", d: `M${[...lower, ...upper].join("L")}Z`, style: `fill: var(--line-${i})` }, drawing);
          }
        }
        let d = "", pen = "M";
        for (const [k, value] of curve.y.entries()) {
          if (value === null || data.x[k] === null) pen = "M";
          else {
            d += pen + point(k, value);
            pen = "L";
            if (data.x.length <= 20)
              make("circle", { cx: px(data.x[k]), cy: py(value), r: 3.4, style: `fill: var(--line-${i})` }, drawing);
          }
        }
        make("path", { class: "line", d, style: style(i), "stroke-dasharray": DASHES[i] }, drawing);
      }
    };

    stage.describe = () => {
      const settings = data.sliders.map(({ name, values }, i) => `${name} ${values[chosen[i]()]}`).join(", ");
      const lines = current().map(({ name, y }) => {
        const drawn = y.map((value, k) => [value, data.x[k]]).filter((point) => !point.includes(null));
        if (!drawn.length) return `${name}: nothing`;
        const top = drawn.reduce((best, point) => (point[0] > best[0] ? point : best));
        const points = new Set([drawn[0], top, drawn.at(-1)]);
        return `${name}: ${[...points].map(([value, at]) => `${written(value)} at ${written(at)}`).join(", ")}`;
      });
      return `${settings}. ${data.labels[1]}, by ${data.labels[0]}. ${lines.join("; ")}.`;
    };
  });
})();
