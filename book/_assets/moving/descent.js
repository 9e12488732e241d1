// A walk down a valley, twice as every reader expects it: the loss is (a² + 8b²) / 2, with its minimum at 0. The steps
// are those of PyTorch's SGD, with momentum, and with a gradient that nobody sets back to zero if the box is ticked.
(() => {
  "use strict";
  const { each, make, written } = figures;
  const CURVATURES = [1, 8], REACH = [4.2, 2.2], STEPS = 50;
  const RATES = [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.24, 0.25, 0.26, 0.3], MOMENTA = [0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1];
  const loss = (point) => point.reduce((sum, x, i) => sum + (CURVATURES[i] * x * x) / 2, 0);

  function walk(start, rate, momentum, forgetful) {
    let point = start, grad = [0, 0], velocity = [0, 0];
    const points = [start];
    for (let step = 0; step < STEPS; step++) {
      grad = point.map((x, i) => CURVATURES[i] * x + (forgetful ? grad[i] : 0));
      velocity = velocity.map((v, i) => momentum * v + grad[i]);
      point = point.map((x, i) => x - rate * velocity[i]);
      points.push(point);
    }
    return points;
  }

  each(".moving-descent", (stage) => {
    let start = [-3.4, 1.4];
    const clip = `${stage.said.id}-clip`;
    const rate = stage.slider("learning rate", RATES.map(written), 3);
    const momentum = stage.slider("momentum", MOMENTA.map(written), 0);
    const forgetful = stage.check("zero_grad() was forgotten");
    const inside = (x, i) => Math.round(20 * Math.max(-REACH[i] + 0.2, Math.min(REACH[i] - 0.2, x))) / 20;
    let scale = 1;
    const place = stage.handle("starting point", {
      put: (x, y) => (start = [x / scale - REACH[0], REACH[1] - y / scale].map(inside)),
      nudge: (dx, dy) => (start = [start[0] + dx / 10, start[1] + dy / 10].map(inside)),
      low: 0.2 - REACH[0],
      high: REACH[0] - 0.2,
    });
    stage.showWords();
    const points = () => walk(start, RATES[rate()], MOMENTA[momentum()], forgetful());

    stage.draw = (width) => {
      scale = width / (2 * REACH[0]);
      const height = 2 * REACH[1] * scale, { drawing } = stage;
      // What is far outside is drawn at the edge of what a browser can draw.
      const far = (v) => Math.max(-1e4, Math.min(1e4, v));
      const at = ([a, b]) => [far((a + REACH[0]) * scale), far((REACH[1] - b) * scale)];
      stage.size(Math.round(height));
      make("rect", { width, height }, make("clipPath", { id: clip }, make("defs", {}, drawing)));
      const world = make("g", { "clip-path": `url(#${clip})` }, drawing);
      const [x, y] = at([0, 0]);
      for (let radius = 0.6; radius < 9; radius += 0.9)
        make("ellipse", { class: "grid", fill: "none", cx: x, cy: y, rx: radius * scale, ry: (radius * scale) / Math.sqrt(CURVATURES[1]) }, world);
      make("path", { class: "axis", d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` }, world);
      const places = points().map(at);
      make("path", { class: "line", style: "stroke: var(--line-0); stroke-width: 1.4", d: `M${places.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` }, world);
      for (const [cx, cy] of places.slice(1)) make("circle", { cx, cy, r: 2.8, style: "fill: var(--line-0)" }, world);
      make("text", { x: 4, y: 15 }, drawing, `↕ steep: curvature ${CURVATURES[1]}`);
      make("text", { x: width - 4, y: height - 6, "text-anchor": "end" }, drawing, `↔ flat: curvature ${CURVATURES[0]}`);
      place(...at(start), start[0], `${written(start[0])} along the flat direction, ${written(start[1])} along the steep one`);
    };

    stage.describe = () => {
      const losses = points().map(loss), last = losses.at(-1), lost = points().findIndex((p) => p.some((x, i) => Math.abs(x) > REACH[i]));
      const end = `From (${start.map(written).join(", ")}), the loss goes from ${written(losses[0])} to ${written(last)} in ${STEPS} steps.`;
      return lost > 0 ? `${end} The walk leaves the picture at step ${lost}.` : end;
    };
  });
})();
