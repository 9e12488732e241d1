// Three rules for a gradient of two numbers, and where each sends it. Names stand where the arrows end, and rules that
// agree share one.
(() => {
  "use strict";
  const { each, make, written, arrow } = figures;
  const BOUNDS = [0.25, 0.5, 0.75, 1, 1.5, 2, 3], REACH = 3.2;
  const norm = (g) => Math.hypot(...g);
  const RULES = {
    "by norm": (g, c) => g.map((x) => x * Math.min(1, c / norm(g))),
    "by value": (g, c) => g.map((x) => Math.max(-c, Math.min(c, x))),
    normalised: (g, c) => g.map((x) => (norm(g) ? (x * c) / norm(g) : 0)),
  };
  const COLOURS = { gradient: "value", "by norm": "gradient", "by value": "other", normalised: "third" };

  function turned(g, h) {
    const cosine = (g[0] * h[0] + g[1] * h[1]) / (norm(g) * norm(h));
    return (Math.acos(Math.min(1, Math.max(-1, cosine))) * 180) / Math.PI;
  }

  each(".moving-clipping", (stage) => {
    let g = [2.6, 1.2], scale = 1, middle = [0, 0];
    const bound = stage.slider("bound c", BOUNDS.map(written), 3);
    const inside = (x) => Math.round(20 * Math.max(-3, Math.min(3, x))) / 20;
    const place = stage.handle("tip of the gradient", {
      put: (x, y) => (g = [(x - middle[0]) / scale, (middle[1] - y) / scale].map(inside)),
      nudge: (dx, dy) => (g = [g[0] + dx / 10, g[1] + dy / 10].map(inside)),
      low: -3,
      high: 3,
    });
    stage.showWords();
    const results = () => Object.entries(RULES).map(([name, rule]) => [name, rule(g, BOUNDS[bound()])]);

    stage.draw = (width) => {
      const { drawing } = stage, height = Math.round(Math.min(width, 320)), c = BOUNDS[bound()];
      scale = height / 2 / REACH;
      middle = [width / 2, height / 2];
      stage.size(height);
      const at = ([x, y]) => [middle[0] + x * scale, middle[1] - y * scale];
      make("path", { class: "axis faint", d: `M${middle[0] - height / 2} ${middle[1]}h${height}M${middle[0]} 0v${height}` }, drawing);
      const area = { fill: "none", "stroke-dasharray": "3 4", "stroke-width": 1.4 };
      make("circle", { class: "gradient", ...area, cx: middle[0], cy: middle[1], r: c * scale }, drawing);
      make("rect", { class: "other", ...area, x: middle[0] - c * scale, y: middle[1] - c * scale, width: 2 * c * scale, height: 2 * c * scale }, drawing);
      const tips = [];
      for (const [name, tip] of [["gradient", g], ...results()]) {
        const same = tips.find((other) => norm([other.tip[0] - tip[0], other.tip[1] - tip[1]]) < 1e-9);
        if (same) same.names.push(name);
        else tips.push({ tip, names: [name] });
      }
      for (const [i, { tip, names }] of tips.entries())
        arrow(drawing, at([0, 0]), at(tip), { class: COLOURS[names.at(-1) === "normalised" ? names[0] : names.at(-1)] }, i ? 3.4 : 1.6);
      const lines = [];
      for (const { tip, names } of tips) {
        const [x, y] = at(tip), text = names.join(" = "), long = 7.8 * text.length, upwards = tip[1] < 0 ? 1 : -1;
        let line = y + 4 + upwards * (names[0] === "gradient" ? 20 : names[0] === "by value" ? 14 : -16);
        while (lines.some((other) => Math.abs(other - line) < 14)) line -= 14 * upwards * (names[0] === "by norm" ? 1 : -1);
        const wanted = tip[0] < 0 ? x - 6 - long : x + 6, start = Math.max(2, Math.min(width - long, wanted));
        if (start !== wanted && names[0] === "by norm") line -= 14 * upwards; // or it would lie on its arrow
        lines.push(line);
        make("text", { class: `strong ${COLOURS[names[0]]}`, x: start, y: line }, drawing, text);
      }
      place(...at(g), g[0], `${written(g[0])} and ${written(g[1])}`);
    };

    stage.describe = () => {
      const said = (name, h) => `${name}: (${h.map(written).join(", ")}), length ${written(norm(h))}`;
      const angle = (h) => (norm(g) && norm(h) ? `, turned by ${written(Math.round(10 * turned(g, h)) / 10)}°` : "");
      return `${[said("Gradient", g), ...results().map(([name, h]) => said(name, h) + angle(h))].join("; ")}.`;
    };
  });
})();
