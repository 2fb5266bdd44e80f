// The accumulation explorer, as fplab.widgets.accumulation draws it.
const DOUBLE = new Float64Array(1), HALVES = new Uint32Array(DOUBLE.buffer); // the low half first
// Addition in a format of at most 24 significand bits. A double holds the sum of so few equal terms, and what it loses, or
// the sum is beyond the format's largest value; a number whose last bit is the format's, added, rounds it to nearest even.
const additionOf = (f) => {
  const largest = sizeAt(f, f.max_code), over = f.inf_code !== null ? Infinity : f.nan_code !== null ? NaN : largest;
  const nearest = (v) => {
    let size = Math.abs(v);
    if (size < Infinity) {
      DOUBLE[0] = v;
      const exponent = Math.max((HALVES[1] >>> 20 & 2047) - 1023, f.emin);
      HALVES[0] = 0;
      HALVES[1] = (exponent + 52 - f.fraction_bits + 1023) << 20 | 0x80000; // 1.5 times a power of two
      size = Math.abs(v + DOUBLE[0] - DOUBLE[0]);
    }
    if (size > largest) size = over;
    return (v < 0 || Object.is(v, -0)) && (size !== 0 || f.negative_zero) ? -size : size;
  };
  return { nearest, plus: (a, b) => nearest(a + b) };
};
// The sum of the first 1, 2, ... up to n equal terms, by each order of fplab.sums: as a function of how many.
const SUMS = {
  sequential: ({ nearest, plus }, term, n) => {
    const sums = [nearest(term)];
    while (sums.length < n) sums.push(plus(term, sums.at(-1)));
    return (k) => sums[k - 1];
  },
  pairwise: ({ nearest, plus }, term, n) => {
    const powers = [nearest(term)]; // of 1, 2, 4, ... terms
    while (2 ** powers.length <= n) powers.push(plus(powers.at(-1), powers.at(-1)));
    return (k) => powers.filter((_, i) => k >> i & 1).reduce((sum, one) => plus(one, sum));
  },
  blocked: (addition, term, n) => {
    const block = 128, inOne = SUMS.sequential(addition, term, Math.min(block, n));
    return (k) => {
      let sum = inOne(Math.min(block, k));
      for (let start = block; start < k; start += block) sum = addition.plus(sum, inOne(Math.min(block, k - start)));
      return sum;
    };
  },
  kahan: ({ nearest, plus }, term, n) => {
    const sums = [nearest(term)];
    for (let carried = 0; sums.length < n;) {
      const t = plus(term, -carried), sum = sums.at(-1), total = plus(sum, t);
      carried = plus(plus(total, -sum), -t);
      sums.push(total);
    }
    return (k) => sums[k - 1];
  },
  neumaier: ({ nearest, plus }, term, n) => {
    const t = nearest(term), sums = [t];
    for (let sum = t, lost = 0; sums.length < n;) {
      const total = plus(sum, t), [large, small] = Math.abs(sum) >= Math.abs(t) ? [sum, t] : [t, sum];
      lost = plus(lost, plus(plus(large, -total), small));
      sum = total;
      sums.push(plus(sum, lost));
    }
    return (k) => sums[k - 1];
  },
};
const curveOf = (state) => {
  const value = parse(state.term), form = ENCODINGS[state.format], { n, order } = state;
  const refused = (rule, values) => refuse("{text}", { text: filled(rule, { term: quoted(state.term), ...values }) });
  if (value.kind !== "finite") refused(sayOf("refusal", "term={term} is no finite number."));
  const isBeyond = less(timesTwoTo([1n, 1n], 1023), value.magnitude);
  const term = isBeyond ? Infinity : additionOf(form).nearest(toNumber(valueOf(value)));
  if (!Number.isFinite(term)) {
    refused(sayOf("refusal", "term={term} is beyond {format}, whose largest value is {max}."),
      { format: form.name, max: general(sizeAt(form, form.max_code)) });
  }
  const { points, fewer, running } = ACCUMULATION, count = Math.min(n, running.includes(order) ? points : fewer);
  const step = (n - 1) / (count - 1); // by 63 or 31, which are odd: no place is halfway between two counts
  const counts = Array.from({ length: count }, (_, i) => (i === count - 1 ? n : Math.round(i * step + 1)));
  const sum = SUMS[order](additionOf(ENCODINGS[state.accumulate]), term, n);
  let stalls = null;
  for (let k = 1; order === "sequential" && term !== 0 && stalls === null && k <= n; k += 1) {
    if (!Number.isFinite(sum(k)) || (k < n && sum(k) === sum(k + 1))) stalls = k;
  }
  return { counts, computed: counts.map(sum), term, stalls, at: stalls && sum(stalls) };
};
const stallOf = ({ stalls: found, at }, state) => {
  if (found === null) return say("nowhere within these terms");
  const f = ENCODINGS[state.accumulate], stalls = withCommas(found);
  if (!Number.isFinite(at)) return say("after {stalls:,} terms the sum overflows", { stalls });
  if (Math.abs(at) >= sizeAt(f, f.max_code)) return say("after {stalls:,} terms at the largest value, {at:g}", { stalls, at: general(at) });
  const exponent = at === 0 ? f.emin : Math.max(floorLog2(magnitude(ofNumber(at))), f.emin);
  return say("after {stalls:,} terms at {at:g}, where the spacing is {ulp:g} and the term at most half of it",
    { stalls, at: general(at), ulp: general(2 ** (exponent - f.fraction_bits)) });
};
const sumsOf = ({ counts, computed, term }, state) => {
  const { width, height, left } = ACCUMULATION, exact = counts.map((n) => term * n + 0), finite = [...exact, ...computed.filter(Number.isFinite), 0];
  const low = finite.reduce((a, b) => (b < a ? b : a)), high = finite.reduce((a, b) => (b > a ? b : a)), span = high - low || 1;
  const drawing = new Scene(width, height + 50);
  const at = (n, y) => [left + n / state.n * (width - left - 110), 16 + (high - y) / span * height];
  drawing.line(...at(0, low), ...at(state.n, low), { stroke_opacity: 0.5 });
  drawing.line(...at(0, low), ...at(0, high), { stroke_opacity: 0.5 });
  drawing.path([at(0, 0), ...counts.map((n, i) => at(n, exact[i]))],
    { stroke: ORANGE, stroke_width: 2, stroke_dasharray: "7 4", class_: "exact" });
  const kept = counts.map((n, i) => [n, computed[i]]).filter(([, y]) => Number.isFinite(y));
  drawing.path([at(0, 0), ...kept.map((one) => at(...one))], { stroke: BLUE, stroke_width: 2.5, class_: "computed" });
  const every = Math.max(Math.floor(kept.length / 12), 1);
  for (const [n, y] of kept.filter((_, i) => i % every === 0)) {
    const [cx, cy] = at(n, y);
    drawing.add("circle", { cx, cy, r: 3.5, fill: BLUE, class_: "sum", data_n: n, data_sum: repr(y) });
  }
  const wanted = exact.at(-1), name = (y, text, lower) => drawing.text(at(state.n, y)[0] + 8, at(state.n, y)[1] + lower, text);
  name(wanted, sayOf("accumulation", "exact"), -2);
  for (const [, y] of kept.slice(-1)) name(y, sayOf("accumulation", "computed"), y <= wanted ? 12 : -2);
  drawing.text(left - 8, 24, general(high, 5), "end", 11);
  drawing.text(left - 8, 18 + height, general(low, 5), "end", 11);
  drawing.text(at(state.n, low)[0], height + 36, say("{n:,} terms", { n: withCommas(state.n) }), "end", 11);
  return drawing.svg(say("sum {end!r}, exact {n!r}", { end: repr(computed.at(-1)), n: repr(wanted) }));
};
const accumulationPicture = (state) => {
  const curve = curveOf(state), end = curve.computed.at(-1), term = ofNumber(curve.term), wanted = times(term, [BigInt(state.n), 1n]);
  const lines = [[say("term in the format"), short(term, 12)], [say("computed"), repr(end)],
    [sayOf("accumulation", "exact"), short(wanted, 12)]];
  if (Number.isFinite(end)) {
    const error = minus(ofNumber(end), wanted), [n, d] = magnitude(wanted);
    const relative = n ? ` (${signed(times(error, ratio(100n * d, n)), 3)} %)` : "";
    lines.push([say("error"), signed(error) + relative]);
  }
  lines.push([say("stalls"), stallOf(curve, state)]);
  const orders = { sequential: sayOf("option", "sequential"), pairwise: sayOf("option", "pairwise"), blocked: sayOf("option", "blocked") };
  const how = listed(state.format, state.accumulate, orders[state.order] ?? state.order);
  return panel(title(afterColon(`${withCommas(state.n)} × ${state.term}`, how)),
    sumsOf(curve, state), facts(lines), note(say("Dashed: exact. Solid: computed.")));
};
board("accumulation", accumulationPicture);
