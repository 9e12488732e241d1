// Games of Pong as they were played, beside the curve on which their players learned it and unlearned it again. Places of
// ball and paddles are the run's; between two of them the ball goes straight.
(() => {
  "use strict";
  const { each, make, written } = figures;
  const SIDE = 160, JUMP = 40, PADDLE = 16, LANES = { left: 16, right: 140 }; // pixels of the emulator's court

  // Where something is at a moment between two frames; a ball that is served anew hasn't flown there.
  function between(places, time) {
    const before = places[Math.floor(time)], after = places[Math.ceil(time)];
    if (before === null || after === null || Math.abs(after - before) > JUMP) return before;
    return before + (time - Math.floor(time)) * (after - before);
  }

  each(".moving-pong", (stage, { data }) => {
    let time = 0;
    const { films, curves, frames_per_second: rate } = data;
    // A film begins when all that moves is there.
    const opening = Math.max(...films.map(({ ball_x, left }) => ball_x.findIndex((x, frame) => x !== null && left[frame] !== null)));
    const texts = films[0].ball_x.slice(opening).map((_, frame) => `${(frame / rate).toFixed(1)} s`);
    const best = films.reduce((most, { share }, i) => (share > films[most].share ? i : most), 0); // who can play comes first
    const radio = stage.choice("Which player", films.map((film) => film.name), best);
    const rewind = stage.player("time", texts, rate, 0, (now) => (time = now));
    stage.controls.addEventListener("input", (event) => event.target.type === "radio" && (rewind(), stage.update()));
    const film = () => films[radio()];
    const score = () => [-1, 1].map((sign) => film().points.filter(([frame, won]) => frame <= opening + time && won === sign).length);

    function drawCourt(width, height) {
      const { drawing } = stage, px = (x) => (x / SIDE) * width, py = (y) => 26 + (y / SIDE) * (height - 26), { ball_x, ball_y, left, right } = film();
      make("rect", { class: "court", x: 0, y: 26, width, height: height - 26, rx: 4 }, drawing);
      make("path", { class: "axis faint", "stroke-dasharray": "6 6", d: `M${width / 2} 26V${height}` }, drawing);
      const [theirs, ours] = score();
      make("text", { x: 2, y: 16 }, drawing, `the game's own player ${theirs}`);
      make("text", { class: "other strong", x: width - 2, y: 16, "text-anchor": "end" }, drawing, `${ours} our agent`);
      for (const [name, places] of Object.entries({ left, right })) {
        const seen = between(places, opening + time), y = seen === null ? null : Math.max(PADDLE / 2, Math.min(SIDE - PADDLE / 2, seen));
        if (y !== null) make("rect", { class: name === "right" ? "other filled" : "filled", x: px(LANES[name]), y: py(y - PADDLE / 2), width: px(4), height: py(PADDLE) - py(0), rx: 2 }, drawing);
      }
      const [x, y] = [between(ball_x, opening + time), between(ball_y, opening + time)];
      if (x !== null && y !== null) make("circle", { class: "value filled", cx: px(x), cy: py(y), r: 4.5 }, drawing);
    }

    function drawCurves(from, to, top, bottom) {
      const { drawing } = stage, most = Math.max(...curves.map((curve) => curve.decisions.at(-1)));
      const left = from + 30, right = to - 12, px = (v) => left + (v / most) * (right - left), py = (v) => bottom - 20 - v * (bottom - top - 40);
      make("text", { x: from, y: top + 4 }, drawing, "share of points won");
      for (const tick of [0, 0.5, 1]) {
        make("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }, drawing);
        make("text", { x: left - 9, y: py(tick) + 4, "text-anchor": "end" }, drawing, written(tick));
      }
      for (let tick = 0; tick <= most; tick += 2e5) make("text", { x: px(tick), y: bottom - 2, "text-anchor": tick ? "middle" : "start" }, drawing, tick ? `${tick / 1000}k` : "0");
      for (const { decisions, won, flipped } of curves) {
        const d = decisions.map((v, i) => `${px(v).toFixed(1)} ${py(won[i]).toFixed(1)}`).join("L");
        make("path", { class: `line ${flipped ? "gradient" : "other"}`, d: `M${d}` }, drawing);
      }
      make("text", { x: right, y: bottom + 14, "text-anchor": "end" }, drawing, "decisions");
      const [plain, turned] = [false, true].map((flipped) => curves.find((curve) => curve.flipped === flipped)), { at, share } = film();
      const risen = plain.won.findIndex((share) => share >= Math.max(...plain.won) / 2);
      make("text", { class: "other", x: px(plain.decisions[risen]) - 10, y: py(plain.won[risen]) - 4, "text-anchor": "end" }, drawing, "learning");
      make("text", { class: "gradient", x: px(turned.decisions[0]), y: py(0.2), "text-anchor": "end" }, drawing, "sign flipped");
      make("circle", { class: "value node", cx: px(at), cy: py(share), r: 6, "stroke-width": 2.5 }, drawing);
    }

    stage.draw = (width) => {
      const wide = width > 400, court = wide ? Math.round(0.54 * width) : width, height = Math.round(0.62 * court) + 26;
      stage.size(wide ? height : height + 184);
      drawCourt(court, height);
      if (wide) drawCurves(court + 22, width, 12, height - 16);
      else drawCurves(0, width, height + 24, height + 168);
    };

    stage.describe = () => {
      const [theirs, ours] = score(), { name, at, share } = film();
      return `Player: ${name}, after ${Math.round(at).toLocaleString("en")} decisions, when it won ${written(100 * share)}% of its points. After ${texts[Math.floor(time)]} of this game it has ${ours} points and the game's own player ${theirs}.`;
    };
  });
})();
