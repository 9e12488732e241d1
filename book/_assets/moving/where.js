// Backward through y = where(x > 0, √x, 0), in the browser's own arithmetic, in which 0 · ∞ is NaN as it is in yours.
(() => {
  "use strict";
  const { each, make, written, arrow } = figures;
  const LOW = -2, HIGH = 4, STEP = 0.25, STAND_IN = 1;

  function flow(x, guarded) {
    const chosen = x > 0, inner = guarded && !chosen ? STAND_IN : x;
    const slope = 1 / (2 * Math.sqrt(inner)), dealt = chosen ? 1 : 0, product = dealt * slope;
    return { chosen, inner, root: Math.sqrt(inner), y: chosen ? Math.sqrt(inner) : 0, slope, dealt, product, arrived: guarded && !chosen ? 0 : product };
  }

  each(".moving-where", (stage) => {
    let x = 1, put = () => 0;
    const inside = (v) => Math.max(LOW, Math.min(HIGH, Math.round(v / STEP) * STEP));
    const guarded = stage.check("double where: √ gets 1 where x ≤ 0");
    const place = stage.handle("x", { put: (px) => (x = inside(put(px))), nudge: (dx, dy) => (x = inside(x + STEP * (dx + dy))), low: LOW, high: HIGH });
    stage.showWords();

    function drawCurve(width) {
      const { drawing } = stage, left = 24, right = width - 12, ground = 112, unit = (right - left) / (HIGH - LOW);
      const px = (v) => left + (v - LOW) * unit, py = (v) => ground - 44 * v, f = flow(x, guarded());
      put = (p) => (p - left) / unit + LOW;
      make("path", { class: "axis faint", d: `M${left} ${ground}H${right}M${px(0)} ${ground + 6}V8` }, drawing);
      for (let v = LOW; v <= HIGH; v += 2) make("text", { x: px(v), y: ground + 24, "text-anchor": "middle" }, drawing, written(v));
      let d = `M${px(0)} ${py(0)}`;
      for (let v = 0.01; v < HIGH + 0.01; v += v < 0.3 ? 0.03 : 0.1) d += `L${px(v).toFixed(1)} ${py(Math.sqrt(v)).toFixed(1)}`;
      make("path", { class: "other line", d }, drawing);
      make("path", { class: "other line", d: `M${left} ${py(0)}H${px(0)}` }, drawing);
      make("text", { class: "other", x: px(2.2), y: py(Math.sqrt(2.2)) - 10, "text-anchor": "end" }, drawing, "√x");
      make("text", { class: "other", x: px(-1), y: py(0) - 10, "text-anchor": "middle" }, drawing, "0");
      make("path", { class: "value", "stroke-dasharray": "2 3", d: `M${px(x)} ${py(0)}V${py(f.y)}` }, drawing);
      make("circle", { class: "value filled", cx: px(x), cy: py(f.y), r: 4 }, drawing);
      place(px(x), ground, x, written(x));
    }

    function drawFlow(width) {
      const { drawing } = stage, f = flow(x, guarded()), top = 196, names = guarded() ? ["x", "where", "√", "where", "y"] : ["x", "√", "where", "y"];
      const column = (i) => 26 + (i * (width - 52)) / (names.length - 1), half = (name) => (name.length > 1 ? 23 : 16);
      const values = guarded() ? [x, f.inner, f.root, f.y] : [x, f.root, f.y];
      const grads = guarded() ? [f.arrived, f.product, f.dealt, 1] : [f.product, f.dealt, 1];
      for (const [i, name] of names.entries()) {
        const cx = column(i), box = !["x", "y"].includes(name);
        if (i) {
          const [from, to] = [column(i - 1) + half(names[i - 1]), cx - half(name)], mid = (from + to) / 2, g = grads[i - 1];
          arrow(drawing, [from + 2, top - 6], [to - 2, top - 6], { class: "value" }, 1.4);
          make("text", { class: "value", x: mid, y: top - 16, "text-anchor": "middle" }, drawing, written(values[i - 1]));
          arrow(drawing, [to - 2, top + 6], [from + 2, top + 6], { class: "gradient", ...(g === 0 && { "stroke-dasharray": "2 4" }) }, g === 0 ? 1.4 : 3);
          make("text", { class: "gradient strong", x: mid, y: top + 27, "text-anchor": "middle" }, drawing, written(g));
        }
        make("rect", { class: "value node", x: cx - half(name), y: top - 16, width: 2 * half(name), height: 32, rx: box ? 4 : 16 }, drawing);
        make("text", { class: "value", x: cx, y: top + 4.5, "text-anchor": "middle" }, drawing, name);
        if (name === "√") make("text", { x: cx, y: top + 46, "text-anchor": "middle" }, drawing, `slope ${written(f.slope)}`);
        if (name === "where") {
          const [given, used] = i === names.length - 2 ? ["0", !f.chosen] : ["1", !f.chosen];
          make("path", { class: `axis${used ? "" : " faint"}`, d: `M${cx} ${top + 16}v12` }, drawing);
          make("text", { class: `${used ? " strong" : ""}`, x: cx, y: top + 42, "text-anchor": "middle" }, drawing, given);
        }
      }
    }

    stage.draw = (width) => {
      stage.size(252);
      drawCurve(width);
      drawFlow(width);
    };

    stage.describe = () => {
      const f = flow(x, guarded()), product = [f.dealt, "·", f.slope, "=", f.product].map((part) => (part.length ? part : written(part))).join("\u00a0");
      const then = guarded() && !f.chosen ? `, and the inner where hands ${written(f.arrived)} to x` : " reaches x";
      return `At x = ${written(x)} the value is ${written(f.y)}. Backward, where sends ${written(f.dealt)} to the root, whose slope is ${written(f.slope)}: ${product}${then}.`;
    };
  });
})();
