// The format designer, as fplab.widgets.designer draws it.
const designed = ({ exponent_bits, fraction_bits, specials }) => {
  const name = `e${exponent_bits}m${fraction_bits}`, emin = 2 - 2 ** (exponent_bits - 1), lowest = emin - fraction_bits;
  const demand = (holds, rule, values) => {
    if (holds) return;
    const widths = `${quoted(name)}, exponent_bits=${exponent_bits}, fraction_bits=${fraction_bits}`;
    const text = filled(sayOf("refusal", "fplab.Format({widths}, ...): {error}"), { widths, error: filled(rule, values) });
    refuse("{text}", { text });
  };
  demand(specials !== "ieee" || fraction_bits > 0,
    sayOf("refusal", "fraction_bits=0 leaves no code for NaN beside infinity; allowed: 1 to 52, or other specials."));
  const places = BigInt(fraction_bits), top = 1n << BigInt(exponent_bits + fraction_bits);
  const max_code = { ieee: top - (1n << places) - 1n, last: top - 2n }[specials] ?? top - 1n;
  demand(max_code >= 1n << places,
    sayOf("refusal", "exponent_bits={exponent_bits} with these specials leaves no normal number."), { exponent_bits });
  const form = { name, bits: 1 + exponent_bits + fraction_bits, signed: true, exponent_bits, fraction_bits, emin, specials,
    places, max_code, zero: 1, inf_code: specials === "ieee" ? max_code + 1n : null, nan_code: specials === "none" ? null : top };
  demand(emaxOf(form) <= 1023, sayOf("refusal", "values from 2**{lowest} to 2**{emax} do not fit float64, which carries them (2**-1074 to 2**1023); change exponent_bits or bias."),
    { lowest, emax: emaxOf(form) });
  return form;
};
const emaxOf = (f) => Number(f.max_code >> f.places) - f.zero + f.emin;

const stripOf = (f) => { // the fields of a code, all of its digits 0
  const parts = [["sign", Number(f.signed)], ["exponent", f.exponent_bits], ["fraction", f.fraction_bits]].filter(([, size]) => size);
  const cell = f.bits <= 16 ? 16 : f.bits <= 32 ? 13 : 8;
  const drawing = new Scene(8 + parts.reduce((sum, [, size]) => sum + cell * size + 8, 0), 42);
  let x = 4;
  for (const [name, size] of parts) {
    for (let i = 0; i < size; i += 1) {
      drawing.rect(x + i * cell, 1, cell, 23, FORMATS.fills[name], { fill_opacity: 0.16, stroke: "currentColor", stroke_opacity: 0.4 });
      drawing.text(x + (i + 0.5) * cell, 17, "0", "middle", 13, { font_family: MONO, class_: "bit" });
    }
    const width = cell * size, said = named(name);
    drawing.text(x + width / 2, 38, width >= 6 * said.length ? said : said.slice(0, size > 1 ? 4 : 1), "middle", 11, { opacity: 0.85 });
    x += width + 8;
  }
  return drawing;
};
const numbersOf = (f) => {
  const largest = sizeAt(f, f.max_code), smallest = sizeAt(f, f.zero), codes = f.max_code + 1n;
  const special = [...(f.inf_code === null ? [] : [say("infinity")]), ...(f.nan_code === null ? [] : ["NaN"])];
  return [
    [say("largest"), general(largest, 9)],
    [say("smallest normal"), `${general(2 ** f.emin, 9)} = ${twoTo(f.emin)}`],
    [say("smallest"), general(smallest, 9)],
    [say("ulp of 1"), `${general(2 ** -f.fraction_bits, 9)} = ${twoTo(-f.fraction_bits)}`],
    [say("ulp of the largest"), general(2 ** (emaxOf(f) - f.fraction_bits), 9)],
    [say("range"), say("{decades:.1f} decades", { decades: (Math.log10(largest) - Math.log10(smallest)).toFixed(1) })],
    [sayOf("designer", "values"), withCommas(f.signed ? 2n * codes - 1n : codes)],
    [say("specials"), special.join(sayOf("between items", ", ")) || sayOf("designer", "none")],
  ];
};
const rulerOf = (f) => { // all values that are not negative, or the lowest of them
  const { width, most } = DESIGNER, count = f.max_code < most ? Number(f.max_code) + 1 : most;
  const values = Array.from({ length: count }, (_, code) => sizeAt(f, code)), end = values.at(-1), drawing = new Scene(width, 62);
  drawing.line(20, 36, width - 30, 36);
  for (const value of values) {
    const x = 20 + value / end * (width - 50), isSubnormal = value < 2 ** f.emin;
    drawing.line(x, isSubnormal ? 26 : 14, x, 36, { stroke: isSubnormal ? ORANGE : BLUE,
      class_: isSubnormal ? "subnormal" : "normal", data_value: repr(value) });
  }
  drawing.text(20, 54, "0", "middle", 11);
  const text = count > f.max_code ? say("largest") : say("and so on");
  drawing.text(width - 30, 54, say("{before} ({text})", { before: general(end), text }), "end", 11);
  return drawing.svg(afterColon(f.name, say("{size} values from 0 to {n:.6g}", { size: count, n: general(end) })));
};
const perBinade = (f) => { // how many positive values each power of two holds, by its exponent
  const found = new Map(), lowest = f.emin - (f.zero ? f.fraction_bits : 0), last = emaxOf(f);
  for (let e = lowest; e <= last; e += 1) found.set(e, 2 ** Math.min(e < f.emin ? e - lowest : f.fraction_bits, f.fraction_bits));
  return found.set(last, Number(f.max_code & ALL_ONES(f.fraction_bits)) + 1); // the highest may end early
};
const densityOf = (forms) => {
  const { width } = DESIGNER, tallies = forms.map(perBinade), ends = tallies.map((tally) => [Math.min(...tally.keys()), Math.max(...tally.keys())]);
  const first = Math.min(...ends.flat()), last = Math.max(...ends.flat()), step = (width - 90) / (last - first + 1);
  const drawing = new Scene(width, 176), tallest = Math.max(...tallies.map((tally) => Math.log2(Math.max(...tally.values())))) + 1;
  forms.forEach(({ name }, i) => {
    const foot = 76 + i * 72;
    for (const [exponent, n] of tallies[i]) {
      const tall = (Math.log2(n) + 1) / tallest * 58, x = 74 + (exponent - first) * step;
      drawing.rect(x, foot - tall, Math.max(step - 0.6, 0.5), tall, i ? GREY : BLUE,
        { fill_opacity: 0.7, class_: `density-${i}`, data_n: n, data_binade: exponent });
    }
    drawing.text(68, foot - 4, name, "end", 12, { font_weight: "bold" });
    drawing.line(74, foot, width - 10, foot, { stroke_opacity: 0.5 });
  });
  const every = 2 ** Math.ceil(Math.log2(Math.max((last - first) / 16, 1)));
  for (let exponent = Math.ceil(first / every) * every; exponent <= last; exponent += every) {
    drawing.text(74 + (exponent - first + 0.5) * step, 168, twoTo(exponent), "middle", 11);
  }
  return drawing.svg(forms.map(({ name }, i) => afterColon(name, say("binades {n} to {n2}", { n: ends[i][0], n2: ends[i][1] }))).join("; "));
};
const designerPicture = (state) => {
  const form = designed(state), other = ENCODINGS[state.beside];
  const same = ["exponent_bits", "fraction_bits", "emin", "signed", "zero", "specials"];
  const twins = FORMATS.records.filter((one) => same.every((field) => one[field] === form[field])).map(({ name }) => name);
  const bits = say("{bits} bits", { bits: form.bits });
  const known = twins.length ? say(" (the table's {names})", { names: listed(...twins) }) : "";
  return panel(
    title(listed(form.name, bits + known)), stripOf(form).svg(afterColon(form.name, bits)),
    beside(title(form.name) + facts(numbersOf(form)), title(other.name) + facts(numbersOf(other))),
    title(say("Values from zero up, to scale")), rulerOf(form),
    title(say("Values in each power of two")), densityOf([form, other]),
    note(say("Short ticks: subnormals. A wider bar: a larger range; a taller one: more values a binade.")));
};
board("designer", designerPicture);
