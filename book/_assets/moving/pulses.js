// Pulses run forward with the values of L = x² + x and come back with its gradients. The box behind the square hands the
// value on, so it holds an equals sign; the rule below it is for the gradient alone.
(() => {
  "use strict";
  const { each, make, written, arrow } = figures;
  const EDITS = { "leave it": 1, "detach()": 0, "scale by ½": 0.5, reverse: -1 };
  const NAMES = ["x", "x²", "y", "edit", "z", "+", "L"], BOXES = [1, 3, 5], HOPS = NAMES.length - 1;
  const STARTS = [-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3];

  // The arc from x to the sum, as the points of a curve: values along the inner one, gradients back along the outer one.
  function arcs(from, to, up, down) {
    return [0, 1].map((outer) => [[from + 15 - 6 * outer, up + 9 + 5 * outer], [from + 50, down + 14 + 11 * outer], [to - 4 + 8 * outer, down + 14 + 11 * outer], [to - 4 + 8 * outer, up + 19]]);
  }

  const curve = ([start, ...others]) => `M${start.join(" ")}C${others.map((point) => point.join(" ")).join(" ")}`;

  // Values where each of the seven nodes puts them, gradients where they come back to; the second path is x itself.
  function pass(x, slope) {
    return { values: [x, x * x, x * x, x * x, x * x, x * x + x, x * x + x], grads: [2 * x * slope + 1, slope, slope, 1, 1, 1, 1], above: 2 * x * slope };
  }

  each(".moving-pulses", (stage) => {
    let time = 2 * HOPS;
    const texts = Array.from({ length: 2 * HOPS + 1 }, (_, i) => (i <= HOPS ? `forward, ${NAMES[i]}` : `backward, ${NAMES[2 * HOPS - i]}`));
    const edit = stage.choice("What stands behind y", Object.keys(EDITS));
    const start = stage.slider("x", STARTS.map(written), 8);
    stage.player("moment", texts, 1.6, time, (now) => (time = now));
    stage.showWords();
    const found = () => pass(STARTS[start()], Object.values(EDITS)[edit()]);

    stage.draw = (width) => {
      const { drawing } = stage, { values, grads, above } = found(), slope = Object.values(EDITS)[edit()];
      const up = 66, down = 150, half = (i) => (BOXES.includes(i) ? 17 : 15), column = (i) => 22 + (i * (width - 44)) / HOPS;
      const back = time - HOPS, seen = (i) => time >= i - 0.01, returned = (i) => back >= HOPS - i - 0.01;
      stage.size(196);
      const [there, again] = arcs(column(0), column(5), up, down);
      drawArc(there, "value", seen(5), 1.4);
      drawArc([...again].reverse(), "gradient", returned(0), 2.4);
      for (let i = 1; i <= HOPS; i++) {
        const from = column(i - 1) + half(i - 1) + 2, to = column(i) - half(i) - 2;
        arrow(drawing, [from, up - 4], [to, up - 4], { class: `value${seen(i) ? "" : " faint"}` }, 1.4);
        const g = i <= 3 ? slope : 1, dash = g === 0 ? { "stroke-dasharray": "2 3" } : {};
        arrow(drawing, [to, up + 4], [from, up + 4], { class: `gradient${returned(i - 1) ? "" : " faint"}`, ...dash }, g === 0 ? 1 : 2.4 * Math.sqrt(Math.abs(g)));
      }
      drawPulses({ arc: back < 0 ? there : again, up, column, slope, back }); // before the nodes, through which they pass
      for (const [i, name] of NAMES.entries()) {
        const cx = column(i), box = BOXES.includes(i), reached = returned(i) && (i !== 2 || slope);
        make("rect", { class: `node ${i === 3 && slope !== 1 ? "gradient" : "value"} ${box ? "operation" : reached ? "reached" : ""}`, x: cx - half(i), y: up - 15, width: 2 * half(i), height: 30, rx: box ? 4 : 15 }, drawing);
        make("text", { class: `value${box ? "" : " letter"}`, x: cx, y: up + 4.5, "text-anchor": "middle" }, drawing, i === 3 ? "=" : name);
        if (i === 3) make("text", { class: "gradient strong", x: cx, y: up + 34, "text-anchor": "middle" }, drawing, { 1: "×1", 0: "✂", 0.5: "×½", "-1": "×−1" }[slope]);
        if (box) continue;
        if (seen(i)) make("text", { class: "value", x: cx, y: up - 24, "text-anchor": "middle" }, drawing, written(values[i]));
        if (returned(i)) make("text", { class: "gradient strong", x: cx, y: up + 34, "text-anchor": "middle" }, drawing, written(grads[i]));
      }
      make("text", { x: 2, y: 14 }, drawing, "values, forward");
      make("text", { class: "gradient", x: width - 2, y: 14, "text-anchor": "end" }, drawing, "gradients, backward");
      if (returned(0)) make("text", { class: "gradient", x: 2, y: 192 }, drawing, `${written(above)} by y, and 1 by the arc: ${written(grads[0])}`);
    };

    // What an arrow is, along a curve: its head stands on the curve's end and points as the curve does there.
    function drawArc(points, kind, lit, width) {
      const group = make("g", lit ? {} : { class: "faint" }, stage.drawing), [[fromX, fromY], [x, y]] = points.slice(2);
      const length = Math.hypot(x - fromX, y - fromY), back = (far) => [x - (far * (x - fromX)) / length, y - (far * (y - fromY)) / length];
      make("path", { class: `${kind} shaft`, d: curve([...points.slice(0, 3), back(8)]), "stroke-width": width }, group);
      arrow(group, back(10), [x, y], { class: kind }, width);
    }

    function drawPulses({ arc, up, column, slope, back }) {
      const { drawing } = stage, forward = back < 0, hop = forward ? time : HOPS - back;
      if (time === 0 || time >= 2 * HOPS) return;
      const kind = forward ? "value" : "gradient", radius = forward || hop > 3 ? 5 : 5 * Math.sqrt(Math.abs(slope));
      const between = column(Math.floor(hop)) + (hop - Math.floor(hop)) * (column(Math.ceil(hop)) - column(Math.floor(hop)));
      if (radius) make("circle", { class: `${kind} filled`, cx: between, cy: up + (forward ? -4 : 4), r: radius }, drawing);
      const path = make("path", { d: curve(arc), fill: "none" }, drawing), along = hop / (HOPS - 1);
      if (along <= 1) {
        const { x, y } = path.getPointAtLength(along * path.getTotalLength());
        make("circle", { class: `${kind} filled`, cx: x, cy: y, r: 5 }, drawing);
      }
      path.remove();
    }

    stage.describe = () => {
      const { values, grads, above } = found(), name = Object.keys(EDITS)[edit()];
      return `x = ${written(values[0])}, ${name}: forward, L = ${written(values[6])} whatever the edit. Backward, ${written(above)} comes by way of y and 1 by the arc, so the gradient at x is ${written(grads[0])}.`;
    };
  });
})();
