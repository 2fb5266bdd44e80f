// The rounding number line, as fplab.widgets.rounding draws it.
const lineOf = (state) => { // five neighbouring values
  const f = ENCODINGS[state.format], { gaps } = ROUNDING, base = parse(state.base);
  if (base.kind !== "finite") {
    const rule = sayOf("refusal", "base={base} is no finite number; the line begins at a number.");
    refuse("{text}", { text: filled(rule, { base: quoted(state.base) }) });
  }
  const beyond = less(f.value(f.max_code).magnitude, base.magnitude);
  const codes = [beyond ? (base.negative ? f.sign_mask : 0n) | f.max_code : FLOATS.roundTo(f, base, "rtn")];
  const finiteNext = (code, up) => {
    const next = f.neighbour(code, up);
    return next !== null && f.value(next).kind === "finite" ? next : null;
  };
  while (codes.length <= gaps) {
    const after = finiteNext(codes.at(-1), true), before = after === null ? finiteNext(codes[0], false) : null;
    if (after !== null) codes.push(after);
    else if (before !== null) codes.unshift(before);
    else {
      const rule = sayOf("refusal", "{name} has too few values for a line of {gaps} gaps.");
      refuse("{text}", { text: filled(rule, { name: f.name, gaps }) });
    }
  }
  const values = codes.map((code) => f.value(code)), gap = Math.min(Math.floor(state.place / ROUNDING.parts), gaps - 1);
  const [low, high] = [values[gap], values[gap + 1]].map(valueOf);
  const part = ratio(BigInt(state.place - gap * ROUNDING.parts), BigInt(ROUNDING.parts));
  return { f, values, x: plus(low, times(minus(high, low), part)) };
};
// For each rounding the codes that it can give, each with its probability.
const endsOf = ({ f, x }) => ROUNDING.modes.map((mode) => {
  const one = [1n, 1n], way = finite(x);
  if (!mode.random) return { ...mode, ends: [[FLOATS.roundTo(f, way, mode.name), one]] };
  const [low, high] = ["rtn", "rtp"].map((to) => FLOATS.roundTo(f, way, to)), [a, b] = [low, high].map((code) => valueOf(f.value(code)));
  const size = minus(b, a);
  if (size[0] === 0n) return { ...mode, ends: [[low, one]] };
  const up = times(minus(x, a), ratio(size[1], size[0]));
  return { ...mode, ends: [[low, minus(one, up)], [high, up]] };
});
const roundingPicture = (state) => {
  const line = lineOf(state), { f, values, x } = line, { left, width, row: tall } = ROUNDING, rows = endsOf(line);
  const [low, high] = [values[0], values.at(-1)].map(valueOf), bottom = 52 + rows.length * tall, span = minus(high, low);
  const drawing = new Scene(width, bottom + 32);
  const at = (value) => left + 20 + toNumber(times(minus(value, low), ratio(span[1], span[0]))) * (width - left - 130);
  const asRatio = ([n, d]) => (d === 1n ? String(n) : `${n}/${d}`);
  drawing.line(at(low) - 8, 44, at(high) + 8, 44);
  for (const one of values) {
    const value = valueOf(one), bits = f.fields(f.nearest(one)).at(-1)[1];
    drawing.line(at(value), 36, at(value), bottom, { stroke_opacity: 0.35 });
    drawing.text(at(value), 30, short(value, 8), "middle", 12, { class_: "tick" });
    drawing.text(at(value), 14, bits, "middle", 10, { font_family: MONO });
  }
  values.slice(1).forEach((one, i) => {
    const middle = at(times(plus(valueOf(values[i]), valueOf(one)), [1n, 2n]));
    drawing.line(middle, 33, middle, 55, { stroke: GREY, stroke_dasharray: "3 2", stroke_width: 1.5 });
  });
  drawing.line(at(x), 40, at(x), bottom, { stroke: ORANGE, stroke_dasharray: "4 3", stroke_width: 1.5 });
  drawing.add("circle", { cx: at(x), cy: 44, r: 5, fill: ORANGE });
  drawing.text(at(x) + 7, 60, "x", "start", 13, { font_weight: "bold" });
  rows.forEach(({ name, said, ends }, i) => {
    const y = 78 + i * tall;
    drawing.text(left, y + 4, `${name}  ${said[language]}`, "end", 12);
    for (const [code, share] of ends) { // from x to a result; the thickness is the probability
      const end = at(valueOf(f.value(code))), likely = toNumber(share);
      if (at(x) !== end) drawing.line(at(x), y, end, y, { stroke: BLUE, stroke_width: 1 + 2 * likely });
      drawing.add("circle", { cx: end, cy: y, r: 3 + 2 * likely, fill: BLUE, class_: "result", data_mode: name,
        data_code: String(code), data_share: asRatio(share) });
      if (likely !== 1) drawing.text(end, y - 8, asRatio(share), "middle", 11);
    }
  });
  const [stored] = rows.find(({ name }) => name === "rtz").ends[0], size = f.value(stored).magnitude;
  const exponent = size[0] === 0n ? f.emin : Math.max(floorLog2(size), f.emin);
  const ulp = short(timesTwoTo([1n, 1n], exponent - f.fraction_bits));
  const where = say("x = {n}; spacing here {ulp}", { n: short(x, 17), ulp });
  const told = rows.map(({ name, ends }) => `${name} ${ends.map(([code]) => short(valueOf(f.value(code)), 8)).join(say(" or "))}`);
  return panel(title(afterColon(f.name, where)),
    drawing.svg(afterColon(listed(f.name, `x = ${short(x, 17)}`), listed(...told))),
    note(say("Above the values: the last field's bits; a dashed tick is a tie.")));
};
board("rounding", roundingPicture, lineOf);
