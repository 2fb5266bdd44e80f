// The loss-scale machine: its rule and its picture, as fplab.widgets.lossscale has them.
const nextScale = (how, { scale, good }, overflowed) => {
  if (overflowed) return { scale: Math.max(Math.fround(scale * how.backoff_factor), how.lowest), good: 0 };
  if (good + 1 < how.interval) return { scale, good: good + 1 };
  const grown = Math.min(Math.fround(scale * how.growth_factor), how.highest ?? Infinity);
  return { scale: how.finite_growth && grown === Infinity ? scale : grown, good: 0 };
};
const scalesOf = (state) => {
  const how = { ...LOSSSCALE.machines[state.library], interval: state.interval };
  const tracked = [{ scale: how.init_scale, good: 0 }];
  for (const event of state.events) tracked.push(nextScale(how, tracked.at(-1), event === "o"));
  return [tracked, how];
};
const power = (x) => {
  if (!Number.isFinite(x)) return general(x);
  const [n, d] = ofNumber(x);
  return isPowerOfTwo(n) && isPowerOfTwo(d) ? twoTo(bitLength(n) - bitLength(d)) : general(x);
};
const lossPicture = (state) => {
  const [tracked, how] = scalesOf(state), now = tracked.at(-1), skipped = state.events.split("o").length - 1;
  return panel(title(state.library), lossDiagram(state, how), lossPlot(state, tracked), facts([
    [say("scale"), now.scale ? `${general(now.scale, 6, true)} = ${power(now.scale)}` : "0"],
    [say("good steps"), `${now.good} / ${how.interval}`], [say("last step"), lastStep(state, tracked)],
    [say("steps"), listed(state.events.length, say("skipped {n}", { n: skipped }))],
  ]), note(say("○ good step, ✕ overflow: the update is skipped, ▲ the scale grew.")));
};
const lastStep = ({ events }, tracked) => {
  if (!events) return say("none yet");
  const [before, after] = tracked.slice(-2).map((one) => one.scale), factor = before === after ? "" : `× ${general(after / before)}`;
  if (events.endsWith("o")) {
    return say("gradients not finite: step skipped, scale {kept}", { kept: factor || say("at its lowest") });
  }
  return after !== before ? say("weights updated, scale {factor}", { factor }) : say("weights updated, scale kept");
};
const lossDiagram = (state, how) => {
  const drawing = new Scene(860, 76), last = state.events.slice(-1) || "g";
  for (const [x, name, isNow] of [[40, say("count good steps"), last === "g"], [560, say("back off, skip the step"), last === "o"]]) {
    drawing.rect(x, 20, 200, 34, x === 40 ? BLUE : ORANGE,
      { fill_opacity: isNow ? 0.35 : 0.08, rx: 8, stroke: "currentColor", stroke_width: isNow ? 2.5 : 1 });
    drawing.text(x + 100, 42, (isNow ? "▶ " : "") + name, "middle", 13);
  }
  drawing.line(244, 30, 552, 30);
  drawing.text(398, 24, afterColon(say("overflow"), `× ${general(how.backoff_factor)} →`), "middle", 12);
  drawing.line(244, 46, 552, 46);
  drawing.text(398, 62, "← " + say("finite gradients"), "middle", 12);
  const grow = say("after {growth_interval}: × {growth_factor:g}", { growth_interval: how.interval, growth_factor: general(how.growth_factor) });
  drawing.text(140, 72, "↻ " + grow, "middle", 12);
  return drawing.svg(afterColon(state.library, last === "o" ? say("overflow") : say("good")));
};
const lossPlot = (state, tracked) => {
  const logs = tracked.map(({ scale }) => (scale > 0 && scale < Infinity ? Math.log2(scale) : null));
  const known = logs.filter((value) => value !== null);
  const low = Math.floor(Math.min(...known)) - 1, high = Math.ceil(Math.max(...known)) + 1;
  const [width, height, left] = [860, 190, 70], drawing = new Scene(width, height + 36);
  const step = (width - left - 20) / Math.max(logs.length - 1, 24);
  const at = (i, value) => [left + i * step, 12 + (high - value) / (high - low) * height];
  for (let exponent = low; exponent <= high; exponent += Math.max(1, Math.floor((high - low) / 8))) {
    const y = at(0, exponent)[1];
    drawing.line(left, y, width - 10, y, { stroke_opacity: 0.18 });
    drawing.text(left - 8, y + 4, power(2 ** exponent), "end", 11);
  }
  const points = [];
  logs.forEach((value, i) => { // a scale holds until the step's end, then jumps
    if (value === null) return;
    if (points.length) points.push([at(i, value)[0], points.at(-1)[1]]);
    points.push(at(i, value));
  });
  drawing.path(points, { stroke: BLUE, stroke_width: 2 });
  [...state.events].forEach((event, before) => {
    const value = logs[before + 1];
    if (value === null) return;
    const [x, y] = at(before + 1, value), { scale } = tracked[before + 1];
    const mark = event === "o" ? "✕" : scale > tracked[before].scale ? "▲" : "○";
    drawing.text(x, y + 5, mark, "middle", 14,
      { class_: "event", data_scale: repr(scale), fill: event === "o" ? ORANGE : "currentColor" });
  });
  drawing.text(width - 10, height + 30, say("steps →"), "end", 11);
  return drawing.svg(afterColon(say("scales"), tracked.slice(-8).map(({ scale }) => general(scale)).join(", ")));
};

WIDGETS.lossscale = (host, given) => {
  let state = { ...given };
  const view = element("div"), library = element("select"), interval = element("input", { type: "range", min: 1, max: 20 });
  for (const one of Object.keys(LOSSSCALE.machines)) library.append(element("option", { value: one, textContent: one }));
  const read = element("output"), inputs = [label(library), label(interval, read)];
  library.addEventListener("change", () => move({ ...state, library: library.value }));
  interval.addEventListener("input", () => move({ ...state, interval: Number(interval.value) }));
  const stepped = (events) => ({ ...state, events: (state.events + events).slice(0, LOSSSCALE.most) });
  const actions = {
    "○ good step": () => stepped("g"),
    "✕ overflow": () => stepped("o"),
    "▲ until growth": () => stepped("g".repeat(Math.max(0, state.interval - scalesOf(state)[0].at(-1).good))),
    "undo": () => ({ ...state, events: state.events.slice(0, -1) }),
    "start again": () => ({ ...state, events: "" }),
  };
  const buttons = Object.entries(actions).map(([name, after]) => {
    const button = element("button", { type: "button", name });
    button.addEventListener("click", () => move(after()));
    return button;
  });
  const move = (after) => {
    state = after;
    library.value = state.library;
    interval.value = read.textContent = state.interval;
    [say("constants of"), say("growth interval")].forEach((text, i) => { inputs[i].firstChild.data = text; });
    for (const button of buttons) button.textContent = say(button.name);
    view.innerHTML = lossPicture(state);
  };
  host.replaceChildren(row(...inputs), row(...buttons), view);
  move(state);
  return () => move(state);
};
