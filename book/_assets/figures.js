// What the figures that a reader can move have in common: the drawing's frame, controls, handles and words.
// A figure's own script calls figures.each() and says on each stage what is drawn and how it is said.
window.figures = (() => {
  "use strict";
  const WAIT = 500; // ms after the last move until the values are read aloud
  const IN_SVG = ["svg", "g", "path", "line", "text", "tspan", "circle", "ellipse", "rect", "clipPath", "defs"];
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

  function make(name, attributes = {}, parent = null, text = "") {
    const node = IN_SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, typeof value === "number" ? round(value) : value);
    if (text) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  function round(value) {
    return Math.round(10 * value) / 10;
  }

  // A number for people: three digits, a power of ten where it is far from 1.
  function written(value) {
    if (Number.isNaN(value)) return "NaN";
    const size = Math.abs(value);
    if (size === Infinity) return value < 0 ? "−∞" : "∞";
    if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(3))).replace("-", "−");
    const [digits, power] = value.toExponential(2).split("e");
    const raised = [...String(Number(power))].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] ?? "⁻").join("");
    return `${Number(digits)}\u00a0×\u00a010${raised}`.replace("-", "−").replace(/^1\u00a0×\u00a0/, "");
  }

  // An arrow whose head ends at a point, however thick its shaft is.
  function arrow(parent, [x, y], [toX, toY], attributes, width = 2.2) {
    const length = Math.hypot(toX - x, toY - y);
    if (length < 1) return;
    const head = Math.min(length, 5 + 2 * width), half = 3 + 0.9 * width;
    const [ux, uy] = [(toX - x) / length, (toY - y) / length];
    const [baseX, baseY] = [toX - head * ux, toY - head * uy];
    const at = (a, b) => `${round(a)} ${round(b)}`;
    const group = make("g", attributes, parent);
    make("path", { class: "shaft", d: `M${at(x, y)}L${at(baseX, baseY)}`, "stroke-width": width }, group);
    make("path", { class: "head", d: `M${at(toX, toY)}L${at(baseX - half * uy, baseY + half * ux)}L${at(baseX + half * uy, baseY - half * ux)}Z` }, group);
    return group;
  }

  function makeStage(figure, number) {
    const data = JSON.parse(figure.querySelector("script").textContent), id = `moving-${number}`;
    const view = make("div", { class: "moving-view" });
    if (data.prompt) make("p", { class: "moving-prompt" }, view, data.prompt);
    const svg = make("svg", { role: "img", "aria-label": data.alt ?? "", "aria-describedby": id }, view);
    const drawing = make("g", {}, svg), handles = make("g", {}, svg);
    const controls = make("div", { class: "moving-sliders" }, view);
    const said = make("output", { id, class: "moving-words", "aria-live": "polite" }, view);
    const stage = { figure, data, view, svg, drawing, controls, said, draw: () => {}, describe: () => "" };
    let width = 0, timer = 0, count = 0;

    stage.size = (height) => {
      for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
    };
    stage.redraw = () => {
      drawing.replaceChildren();
      stage.draw(width);
    };
    // Drawn at once, read aloud when the reader's hand has come to rest.
    stage.update = () => {
      stage.redraw();
      if (stage.readout) stage.readout.textContent = stage.describe();
      clearTimeout(timer);
      timer = setTimeout(() => (said.textContent = stage.describe()), WAIT);
    };
    stage.begin = () => {
      figure.prepend(view);
      figure.classList.add("live");
      width = Math.max(view.clientWidth, 240);
      new ResizeObserver(() => {
        if (!view.clientWidth || view.clientWidth === width) return;
        width = Math.max(view.clientWidth, 240);
        stage.redraw();
      }).observe(view);
      stage.redraw();
      said.textContent = stage.describe();
      if (stage.readout) stage.readout.textContent = said.textContent;
    };
    // What the drawing says in words is there for everybody, not only read aloud.
    stage.showWords = () => (stage.readout = make("p", { class: "moving-readout", "aria-hidden": "true" }, view));

    // A slider over texts; returns how to ask for the number of the chosen one.
    stage.slider = (name, texts, start, changed = stage.update) => {
      const row = make("div", {}, controls), own = `${id}-${count++}`;
      make("label", { for: own }, row, name);
      // The slider itself says its value; told by both, a reader would hear it twice.
      const value = make("output", { for: own, "aria-live": "off" }, row);
      const input = make("input", { id: own, type: "range", min: 0, max: texts.length - 1, step: 1 }, row);
      const show = () => input.setAttribute("aria-valuetext", (value.textContent = texts[Number(input.value)]));
      input.value = start;
      show();
      input.addEventListener("input", () => {
        show();
        changed();
      });
      const chosen = () => Number(input.value);
      chosen.set = (place) => {
        input.value = place;
        show();
      };
      return chosen;
    };

    stage.check = (name) => {
      const label = make("label", { class: "moving-check" }, controls);
      const input = make("input", { type: "checkbox" }, label);
      label.append(name);
      input.addEventListener("input", () => stage.update());
      return () => input.checked;
    };

    stage.choice = (name, options, start = 0) => {
      const group = make("div", { class: "moving-choice", role: "radiogroup", "aria-label": name }, controls);
      const inputs = options.map((option, place) => {
        const label = make("label", {}, group);
        const input = make("input", { type: "radio", name: `${id}-${count}`, value: place }, label);
        input.checked = place === start;
        label.append(option);
        input.addEventListener("input", () => stage.update());
        return input;
      });
      count++;
      return () => inputs.findIndex((input) => input.checked);
    };

    // A film of steps that only the reader starts; it can be stepped through as well. Who asked for less motion sees a still
    // every second.
    stage.player = (name, texts, perSecond, start, show) => {
      let time = start, last = null, frame = 0;
      const chosen = stage.slider(name, texts, start, () => {
        stop();
        show((time = chosen()));
        stage.update();
      });
      const button = make("button", { type: "button", class: "moving-play" }, controls, "Play");
      const end = texts.length - 1, still = matchMedia("(prefers-reduced-motion: reduce)");
      function stop() {
        cancelAnimationFrame(frame);
        last = null;
        button.textContent = "Play";
      }
      function tick(now) {
        if (last === null) return;
        time = Math.min(end, time + (Math.max(0, now - last) / 1000) * perSecond); // the click may be later than "now"
        last = now;
        const beat = Math.max(1, Math.floor(perSecond)), seen = still.matches && time < end ? beat * Math.floor(time / beat) : time;
        chosen.set(Math.floor(seen));
        show(seen);
        stage.redraw();
        if (time < end) frame = requestAnimationFrame(tick);
        else {
          stop();
          stage.update();
        }
      }
      button.addEventListener("click", () => {
        if (last !== null) {
          stop();
          return stage.update();
        }
        if (time >= end) time = 0;
        button.textContent = "Pause";
        last = performance.now();
        frame = requestAnimationFrame(tick);
      });
      return () => {
        stop();
        chosen.set(0);
        show((time = 0));
      };
    };

    // A point that is dragged, by mouse, finger or arrow keys; "put" takes its place in pixels, "nudge" steps.
    stage.handle = (name, { put, nudge, low, high }) => {
      svg.setAttribute("role", "group");
      const slider = { role: "slider", "aria-label": name, "aria-valuemin": low, "aria-valuemax": high };
      const grip = make("g", { class: "grip", tabindex: 0, ...slider }, handles);
      make("circle", { class: "reach", r: 22 }, grip);
      make("circle", { class: "knob", r: 8 }, grip);
      const follow = (event) => {
        const box = svg.getBoundingClientRect();
        put(event.clientX - box.left, event.clientY - box.top);
        stage.update();
      };
      grip.addEventListener("pointerdown", (event) => {
        grip.setPointerCapture(event.pointerId);
        grip.focus();
        event.preventDefault();
      });
      grip.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false }); // or the page moves
      grip.addEventListener("pointermove", (event) => grip.hasPointerCapture(event.pointerId) && follow(event));
      svg.addEventListener("click", (event) => grip.contains(event.target) || follow(event));
      grip.addEventListener("keydown", (event) => {
        if (!(event.key in ARROWS) || event.ctrlKey || event.altKey || event.metaKey) return;
        event.preventDefault();
        nudge(...ARROWS[event.key].map((step) => (event.shiftKey ? 5 * step : step)));
        stage.update();
      });
      return (x, y, value, text) => {
        grip.setAttribute("transform", `translate(${round(x)} ${round(y)})`);
        grip.setAttribute("aria-valuenow", value);
        grip.setAttribute("aria-valuetext", text);
      };
    };
    return stage;
  }

  let number = 0;
  function each(selector, start) {
    for (const figure of document.querySelectorAll(selector)) {
      try {
        const stage = makeStage(figure, number++);
        start(stage, stage.data);
        stage.begin();
      } catch (error) {
        console.error(error); // the still picture stays, and the other figures are started
        figure.classList.remove("live");
        figure.querySelector(".moving-view")?.remove();
      }
    }
  }
  return { each, make, written, arrow };
})();
