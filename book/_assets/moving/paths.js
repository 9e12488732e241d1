// Paths by which the losses of an unroll reach its root and its dynamics: a dot for the loss of step k and application
// j of the dynamics, whose area is the weight with which that loss arrives there.
(() => {
  "use strict";
  const { each, make, written } = figures;
  const MOST = 10, SCALES = [0, 0.25, 0.5, 0.75, 0.9, 1, 1.1];
  const sum = (list) => list.reduce((total, value) => total + value, 0);
  const exact = (value) => String(Number(value.toFixed(3))); // a sum near 2 isn't 2
  const low = (number) => [...String(number)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]).join("");

  // A row for each loss; its number j is the weight with which the loss reaches application j.
  function weights(steps, scale, lossScale) {
    return Array.from({ length: steps }, (_, k) => Array.from({ length: k + 1 }, (_, j) => lossScale * scale ** (k - j)));
  }

  each(".moving-paths", (stage) => {
    const steps = stage.slider("steps K", Array.from({ length: MOST }, (_, i) => String(i + 1)), 5);
    const scale = stage.slider("scale s of each state", SCALES.map(written), 5);
    const divided = stage.check("each loss times 1/K");
    stage.showWords();
    const found = () => {
      const K = steps() + 1, rows = weights(K, SCALES[scale()], divided() ? 1 / K : 1);
      return { K, rows, root: rows.map((row) => row[0]) };
    };

    stage.draw = (width) => {
      const { drawing } = stage, { K, rows, root } = found();
      const left = 38, top = 44, cell = Math.min(38, (width - left - 14) / MOST), high = Math.min(23, cell), at = (i) => left + (i + 0.5) * cell;
      stage.size(Math.round(top + MOST * high + 8));
      make("text", { class: "gradient strong", x: at(0) - cell / 2, y: 14 }, drawing, "root");
      make("text", { class: "other", x: at(1) - cell / 2 + 6, y: 14 }, drawing, "applications of the dynamics");
      for (const [k, row] of rows.entries()) {
        const y = top + (k + 0.5) * high;
        make("text", { x: 2, y: y + 4 }, drawing, `L${low(k + 1)}`);
        make("text", { x: at(k), y: 34, "text-anchor": "middle" }, drawing, `θ${low(k + 1)}`);
        make("path", { class: "axis faint", d: `M${left - 8} ${y}H${at(0)}` }, drawing);
        for (const [j, weight] of row.entries()) {
          const radius = (high / 2 - 1.5) * Math.min(1.15, Math.sqrt(weight));
          make("circle", { class: `${j ? "other" : "gradient"} ${weight ? "filled" : "node"}`, cx: at(j), cy: y, r: Math.max(radius, 1.5) }, drawing);
        }
      }
      const x = width - 4, line = (text, y, kind) => make("text", { class: kind, x, y, "text-anchor": "end" }, drawing, text);
      line(`at the root ${exact(sum(root))}`, top + 0.5 * high + 4, "gradient strong");
      line(`in all ${exact(sum(rows.flat()))}`, top + 0.5 * high + 24, "other strong");
    };

    stage.describe = () => {
      const { K, rows, root } = found(), shown = root.length > 4 ? [...root.slice(0, 3).map(written), "…", written(root.at(-1))] : root.map(written);
      const added = K > 1 ? `${shown.join(" + ")} = ${exact(sum(root))}` : exact(sum(root));
      return `With K = ${K}, the root receives ${added} from the ${K === 1 ? "loss" : "losses"} of the steps, and the dynamics receive ${exact(sum(rows.flat()))} over ${(K * (K + 1)) / 2} paths.`;
    };
  });
})();
