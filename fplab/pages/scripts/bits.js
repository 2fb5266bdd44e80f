// The bit editor: encodings, what edits do, and the picture, as fplab.widgets.bits does it.
const ALL_ONES = (bits) => (1n << BigInt(bits)) - 1n;
const digitsOf = (code, bits) => code.toString(2).padStart(bits, "0");
const refuse = (...words) => { throw { words }; }; // what a message says, in the language in which it is shown

const FLOATS = {
  fields(f, code) {
    const digits = digitsOf(code, f.bits), start = f.signed ? 1 : 0, end = start + f.exponent_bits;
    return [["sign", digits.slice(0, start)], ["exponent", digits.slice(start, end)], ["fraction", digits.slice(end)]]
      .filter(([, part]) => part);
  },
  sizeOf(f, magnitude) { // of a magnitude code, as if the exponent field had no upper end
    const field = Number(magnitude >> f.places), fraction = magnitude & ALL_ONES(f.fraction_bits);
    if (field === 0 && f.zero) return timesTwoTo([fraction, 1n], f.emin - f.fraction_bits);
    return timesTwoTo([fraction + (1n << f.places), 1n], field - f.zero + f.emin - f.fraction_bits);
  },
  value(f, code) {
    const negative = (code & f.sign_mask) !== 0n, magnitude = code & ~f.sign_mask;
    if (f.specials === "negative_zero" && code === f.nan_code) return special("nan", negative);
    if (magnitude <= f.max_code) return { kind: "finite", negative, magnitude: this.sizeOf(f, magnitude) };
    if (magnitude === f.inf_code) return special("inf", negative);
    if (f.specials === "last") return special("nan", negative);
    const payload = ratio(magnitude & ALL_ONES(f.fraction_bits), 1n << f.places);
    return special(less(payload, [1n, 2n]) ? "snan" : "nan", negative, payload);
  },
  nanCode(f, x) {
    const sign = x.negative ? f.sign_mask : 0n;
    if (f.nan_code === null) refuse('{format} has no NaN; pass nan="zero" or nan="max" to replace it.', { format: f.name });
    if (f.specials === "ieee") return sign | f.nan_code | ((x.payload[0] << f.places) / x.payload[1]);
    return f.specials === "last" ? sign | f.nan_code : f.nan_code;
  },
  nearest(f, x) {
    if (x.kind === "nan" || x.kind === "snan") return this.nanCode(f, x);
    const sign = x.negative ? f.sign_mask : 0n;
    if ((isZero(x) && !f.zero) || (x.negative && !f.signed && !isZero(x))) return this.nanCode(f, special("nan"));
    if (isZero(x)) return f.negative_zero ? sign : 0n;
    if (x.kind === "finite") {
      const exponent = Math.max(floorLog2(x.magnitude), f.emin);
      const [n, d] = timesTwoTo(x.magnitude, f.fraction_bits - exponent), units = n / d;
      let code = (BigInt(exponent - f.emin) << f.places) + units - (f.zero ? 0n : 1n << f.places);
      if (code < 0n) code = 0n; // no zero to round to: the smallest value
      else {
        const odd = f.fraction_bits === 0 ? code > 0n || !f.zero : code % 2n === 1n, twice = 2n * (n % d);
        if (twice > d || (twice === d && odd)) code += 1n;
      }
      if (code <= f.max_code) return code === 0n && f.zero && !f.negative_zero ? 0n : sign | code;
    }
    if (f.inf_code !== null) return sign | f.inf_code;
    return f.nan_code !== null ? this.nanCode(f, special("nan", x.negative)) : sign | f.max_code;
  },
  neighbour(f, code, up) {
    const { kind } = this.value(f, code);
    if (kind === "nan" || kind === "snan") return null;
    const top = f.inf_code ?? f.max_code, first = f.zero ? 0n : 1n, size = code & ~f.sign_mask;
    const place = (code & f.sign_mask ? -(size + first) : size) + (up ? 1n : -1n);
    if (place > top || place < (f.signed ? -(top + first) : 0n)) return null;
    return this.nearest(f, this.value(f, place >= 0n ? place : f.sign_mask | (-place - first)));
  },
  kind(f, code) {
    const x = this.value(f, code);
    if (x.kind !== "finite") return named({ inf: "infinite", nan: "quiet NaN", snan: "signalling NaN" }[x.kind]);
    return named(isZero(x) ? "zero" : less(x.magnitude, timesTwoTo([1n, 1n], f.emin)) ? "subnormal" : "normal");
  },
  formula(f, code) {
    if (this.value(f, code).kind !== "finite") return say("exponent and fraction name no number");
    const magnitude = code & ~f.sign_mask, field = Number(magnitude >> f.places);
    const hidden = field !== 0 || !f.zero ? 1 : 0, exponent = Math.max(field, f.zero) - f.zero + f.emin;
    const digits = f.fraction_bits ? "." + digitsOf(magnitude & ALL_ONES(f.fraction_bits), f.fraction_bits) : "";
    return `${code & f.sign_mask ? "−" : ""}${hidden}${digits}₂ × ${twoTo(exponent)}`;
  },
};

// What has neither NaN nor infinity takes a number as a double, within the range of FP32.
const asDouble = (x, name) => {
  if (x.kind !== "finite") refuse("{format} has neither NaN nor infinity.", { format: name });
  const most = 3.4028234663852886e38;
  if (less(ofNumber(most), x.magnitude)) return x.negative ? -most : most;
  const size = FLOATS.sizeOf(ENCODINGS.fp64, FLOATS.nearest(ENCODINGS.fp64, { ...x, negative: false }));
  const found = Number(size[0]) === 0 ? 0 : quotient(size);
  return x.negative ? -found : found;
};
const quotient = ([n, d]) => { // of a binary fraction that a double holds
  const shift = bitLength(d) - 1, half = Math.min(shift, 1000);
  return Number(n >> BigInt(Math.max(bitLength(n) - 53, 0))) * 2 ** Math.max(bitLength(n) - 53, 0) / 2 ** half / 2 ** (shift - half);
};

const INTEGERS = {
  integer: (e, code) => Number(e.low < 0 && code >> BigInt(e.bits - 1) ? code - (1n << BigInt(e.bits)) : code),
  fields(e, code) {
    const digits = digitsOf(code, e.bits);
    return e.low < 0 ? [["sign", digits[0]], ["integer", digits.slice(1)]] : [["integer", digits]];
  },
  value(e, code, scale) { return exactly(Math.fround(this.integer(e, code) * Math.fround(scale))); },
  nearest(e, x, scale) {
    const reciprocal = Math.fround(1 / Math.fround(scale)), v = Math.fround(asDouble(x, e.name));
    const steps = Math.fround(v * reciprocal), low = Math.floor(steps), rest = steps - low;
    const even = Number.isFinite(steps) ? low + (rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? 1 : 0) : steps;
    return BigInt(Math.max(e.low, Math.min(e.high, even))) & ALL_ONES(e.bits);
  },
  neighbour(e, code, up) {
    const after = this.integer(e, code) + (up ? 1 : -1);
    return after < e.low || after > e.high ? null : BigInt(after) & ALL_ONES(e.bits);
  },
  kind(e, code) { return say("integer {n}", { n: this.integer(e, code) }); },
  formula(e, code) {
    const weights = [];
    for (let i = e.bits - 1; i >= 0; i -= 1) {
      if (code >> BigInt(i) & 1n) weights.push(e.low < 0 && i === e.bits - 1 ? -(2 ** i) : 2 ** i);
    }
    return `(${weights.join(" + ") || "0"}) × ${say("scale")}`;
  },
};

const BOOKS = {
  tree(e, code) { // the fields of a code of the dynamic tree
    const rest = code & ALL_ONES(e.bits - 1), width = bitLength(rest) - 1;
    return { negative: Boolean(code >> BigInt(e.bits - 1)), zeros: e.bits - 1 - bitLength(rest), width,
      fraction: width >= 0 ? rest - (1n << BigInt(width)) : 0n };
  },
  fields(e, code) {
    const digits = digitsOf(code, e.bits);
    if (!e.is_tree) return [["index", digits]];
    const { zeros, width } = this.tree(e, code), end = 1 + zeros;
    return [["sign", digits[0]], ["zeros", digits.slice(1, end)], ["indicator", digits.slice(end, end + 1)],
      ["fraction", width > 0 ? digits.slice(end + 1) : ""]].filter(([, part]) => part);
  },
  value(e, code, scale) { return exactly(Math.fround(e.table[Number(code)] * Math.fround(scale))); },
  nearest(e, x, scale) {
    const most = Math.fround(scale), inside = Math.fround(Math.max(-most, Math.min(most, asDouble(x, e.name))));
    const wanted = Math.fround(inside / most), { order } = e;
    let best = 0;
    const away = (rank) => magnitude(minus(ofNumber(order[rank]), ofNumber(wanted)));
    while (best + 1 < order.length && order[best + 1] <= wanted) best += 1;
    if (best + 1 < order.length) {
      const [below, above] = [away(best), away(best + 1)];
      if (less(above, below) || (!less(below, above) && best % 2 === 1)) best += 1;
    }
    return BigInt(e.table.indexOf(order[best]));
  },
  rank: (e, code) => e.order.indexOf(e.table[Number(code)]),
  neighbour(e, code, up) {
    const rank = this.rank(e, code) + (up ? 1 : -1);
    return rank < 0 || rank >= e.order.length ? null : BigInt(e.table.indexOf(e.order[rank]));
  },
  kind(e, code) { return say("value {rank} of {size}", { rank: this.rank(e, code) + 1, size: e.order.length }); },
  formula(e, code) {
    const largest = sayOf("encodings", "largest magnitude");
    if (!e.is_tree) return say("table[{code}] = {value!r} × {largest}", { code, value: repr(e.table[Number(code)]), largest });
    const { negative, zeros, width, fraction } = this.tree(e, code);
    if (width < 0) return say("no indicator: zero");
    return `${negative ? "−" : ""}10^−${zeros}${width ? ` × ${fraction}/${2 ** width - 1}` : ""} × ${largest}`;
  },
};

const ENCODINGS = Object.fromEntries(BITS.encodings.map((one) => {
  for (const key of ["sign_mask", "max_code", "inf_code", "nan_code"]) if (one[key] != null) one[key] = BigInt(one[key]);
  if (one.table) one.order = [...new Set(one.table.map((v) => v + 0))].sort((a, b) => a - b);
  const way = one.table ? BOOKS : "low" in one ? INTEGERS : FLOATS;
  one.places = BigInt(one.fraction_bits ?? 0);
  for (const name of ["fields", "value", "nearest", "neighbour", "kind", "formula"]) one[name] = (...given) => way[name](one, ...given);
  return [one.name, one];
}));
const named = (name) => BITS.names[name]?.[language] ?? name;

// --- what is typed ---------------------------------------------------------------------------------------------
const quoted = (text) => {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  return quote + text.replaceAll("\\", "\\\\").replaceAll(quote, "\\" + quote) + quote;
};
const ALLOWED = 'a number; a decimal text such as "0.1" or "-2.5e-8", taken exactly; a ratio "1/3"; a hexadecimal float "0x1.8p3"; "inf", "nan"; or a code of a format, "fp16:0x3c00" or "fp16:0b0011110000000000"';
const parse = (text) => {
  const found = parsed(text), [n, d] = found.magnitude;
  if (Math.max(bitLength(n), bitLength(d)) > BITS.most_bits) {
    refuse("the number is too large, small or long: inspect works out at most {bits} bits exactly.", { bits: BITS.most_bits });
  }
  return found;
};
const parsed = (text) => {
  const word = text.trim().toLowerCase().replaceAll("_", "");
  if (word.length > BITS.longest_text) {
    refuse("a text of {n} characters is too long; allowed: {most}, or a Fraction.", { n: word.length, most: BITS.longest_text });
  }
  if (word.includes(":")) return ofCode(text.trim());
  const bare = word.replace(/^[+-]+/, ""), negative = word.startsWith("-");
  if (["inf", "infinity", "nan", "snan"].includes(bare)) return special(bare.startsWith("inf") ? "inf" : bare, negative);
  const sane = (power) => {
    if (power.length <= 8 && Math.abs(Number(power)) <= BITS.largest_exponent) return;
    refuse("the exponent of {text} is beyond ±{most}, the largest that inspect works out exactly.",
      { text: quoted(text), most: BITS.largest_exponent });
  };
  let match = /^([+-]?)([0-9]+)\s*\/\s*([0-9]+)$/.exec(word);
  if (match) {
    if (BigInt(match[3]) === 0n) refuse("{text} divides by zero; allowed: {allowed}.", { text: quoted(text), allowed: [ALLOWED] });
    return finite(ratio(BigInt(match[2]) * (negative ? -1n : 1n), BigInt(match[3])), negative);
  }
  match = /^([+-]?)0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]+))?$/.exec(word);
  if (match && (match[2] || match[3])) {
    sane(match[4] ?? "0");
    const digits = BigInt("0x" + match[2] + (match[3] ?? "")), shift = Number(match[4] ?? 0) - 4 * (match[3] ?? "").length;
    return finite(timesTwoTo([negative ? -digits : digits, 1n], shift), negative);
  }
  match = /^[+-]?(?:([0-9]+)\.?([0-9]*)|\.([0-9]+))(?:e([+-]?[0-9]+))?$/.exec(word);
  if (match) {
    sane(match[4] ?? "0");
    const part = match[3] ?? match[2], digits = BigInt((match[1] ?? "") + part), power = Number(match[4] ?? 0) - part.length;
    const size = power >= 0 ? [digits * 10n ** BigInt(power), 1n] : ratio(digits, 10n ** BigInt(-power));
    return finite([negative ? -size[0] : size[0], size[1]], negative);
  }
  return refuse("cannot read {text} as a value; allowed: {allowed}.", { text: quoted(text), allowed: [ALLOWED] });
};
const integerOf = (text) => {
  const digits = text.replaceAll("_", "").toLowerCase();
  return /^(0x[0-9a-f]+|0b[01]+|0o[0-7]+|0+|[1-9][0-9]*)$/.test(digits) ? BigInt(digits) : null;
};
const hex = (code, bits) => "0x" + code.toString(16).padStart(Math.ceil(bits / 4), "0");
const ofCode = (text) => {
  const [, given, digits] = /^([^:]*):(.*)$/s.exec(text).map((part) => part.trim());
  const format = ENCODINGS[BITS.aliases[given.toLowerCase()]];
  if (!format) refuse("unknown {kind} {given}. Allowed: {allowed}.", { kind: ["format"], given: quoted(given), allowed: BITS.formats.join(", ") });
  const code = integerOf(digits.replaceAll(" ", "")), { name, bits } = format;
  if (code === null) {
    refuse('cannot read {text} as a code of {format}; allowed: "{format}:0x..." in hexadecimal, "{format}:0b..." in binary, or a plain integer.',
      { text: quoted(digits), format: name });
  }
  if (code >> BigInt(bits)) {
    refuse("{text} is not a code of {format}, which has {bits} bits; allowed: 0 to {last}.",
      { text: digits, format: name, bits, last: hex(ALL_ONES(bits), bits) });
  }
  return format.value(code);
};

// --- what edits do ---------------------------------------------------------------------------------------------
const valueAt = (state, side) => (state.codes[side] === null ? null : ENCODINGS[state.names[side]].value(state.codes[side], state.scale));
const attempted = (state, step) => {
  try { return step(); } catch (error) { if (!error.words) throw error; return { ...state, problem: error.words }; }
};
const EDITS = {
  edited(state, side, code) {
    const value = ENCODINGS[state.names[side]].value(code, state.scale), codes = [];
    codes[side] = code;
    codes[1 - side] = null;
    const after = { ...state, codes, source: side, problem: null };
    return attempted(after, () => {
      const other = ENCODINGS[state.names[1 - side]].nearest(value, state.scale);
      return { ...after, codes: side ? [other, code] : [code, other] };
    });
  },
  toggled: (state, side, bit) => EDITS.edited(state, side, (state.codes[side] ?? 0n) ^ 1n << BigInt(bit)),
  stepped(state, side, up) {
    const code = state.codes[side], after = code === null ? null : ENCODINGS[state.names[side]].neighbour(code, up);
    if (after !== null) return EDITS.edited(state, side, after);
    return { ...state, problem: ["{first}: {then}", { first: state.names[side], then: ["there is no further value in this direction."] }] };
  },
  typed(state, side, text) {
    return attempted(state, () => {
      const encoding = ENCODINGS[state.names[side]], word = text.trim();
      if (!/^(0x[0-9a-f]+|0b[01]+)$/i.test(word)) return EDITS.edited(state, side, encoding.nearest(parse(text), state.scale));
      const code = BigInt(word.toLowerCase());
      if (code >> BigInt(encoding.bits)) {
        refuse("{text} is not a code of {format}; allowed: 0x0 to {last}.",
          { text: word, format: encoding.name, last: "0x" + ALL_ONES(encoding.bits).toString(16) });
      }
      return EDITS.edited(state, side, code);
    });
  },
  chosen(state, side, name) {
    const after = { ...state, names: side ? [state.names[0], name] : [name, state.names[1]] }, keep = after.codes[1 - side];
    return keep === null ? EDITS.edited(after, side, 0n) : EDITS.edited(after, 1 - side, keep);
  },
  scaled(state, text) {
    const scale = text.trim() ? Number(text) : 0;
    if (!(scale >= 1e-30 && scale <= 1e30)) {
      return { ...state, problem: ["scale {text} is not possible; allowed: 1e-30 to 1e30, such as 1 or 0.05.", { text: quoted(text) }] };
    }
    return EDITS.edited({ ...state, scale }, state.source, state.codes[state.source] ?? 0n);
  },
};

// --- the picture -----------------------------------------------------------------------------------------------
const numberText = (x) => {
  if (x.kind === "snan") return say("signalling NaN");
  const sign = x.negative ? "-" : "";
  if (x.kind !== "finite") return x.kind === "inf" ? sign + "inf" : "NaN";
  return isZero(x) ? sign + "0" : decimalText(valueOf(x));
};
const nearText = (x) => {
  if (x === null) return sayOf("words", "none");
  const text = numberText(x);
  return text.length <= 28 || x.kind !== "finite" ? text : `≈ ${short(valueOf(x), 17)}`;
};
const sideOf = (state, side) => {
  const encoding = ENCODINGS[state.names[side]], code = state.codes[side];
  const mark = side === state.source ? say("edited") : say("follows, rounded to nearest");
  const bracketed = say("{before} ({text})", { before: "", text: mark }).trim();
  const head = `${title(encoding.name)} <span style="opacity:.8">${bracketed}</span>`;
  if (code === null) return head + note(say("cannot hold this value"));
  const value = encoding.value(code, state.scale), [below, above] = [false, true].map((up) => encoding.neighbour(code, up))
    .map((near) => nearText(near === null ? null : encoding.value(near, state.scale)));
  const ratioToo = value.kind === "finite" && value.magnitude[1] > 1n ? ` = ${binaryText(valueOf(value))}` : "";
  return head + facts([
    [say("code"), `${hex(code, encoding.bits)} = ${code}`], [say("class"), encoding.kind(code)],
    [say("made of"), encoding.formula(code)], [say("value"), numberText(value) + ratioToo],
    [say("below"), below], [say("above"), above],
  ]);
};
const distance = (state) => {
  const [a, b] = [valueAt(state, 0), valueAt(state, 1)];
  if (a?.kind !== "finite" || b?.kind !== "finite") return "";
  const difference = minus(valueOf(b), valueOf(a)), [n, d] = a.magnitude;
  if (difference[0] === 0n) return say("Both hold the same value.");
  const share = n ? `, ${signed(times(difference, [d, n]), 3)} × ${state.names[0]}` : "";
  return `${state.names[1]} − ${state.names[0]} = ${signed(difference)}${share}`;
};
const bitsPicture = (state) => panel(beside(sideOf(state, 0), sideOf(state, 1)), note(distance(state)),
  state.problem ? refusal(say(...state.problem)) : "");

WIDGETS.bits = (host, given) => {
  let state = { names: [given.left, given.right], codes: given.codes.map((c) => (c === null ? null : BigInt(c))),
    source: given.source, scale: given.scale, problem: null };
  const view = element("div"), scale = element("input", { type: "text", size: 8 });
  const sides = [0, 1].map((side) => {
    const name = element("select"), text = element("input", { type: "text" }), bits = element("div", { className: "fplab-bits" });
    for (const one of Object.keys(ENCODINGS)) name.append(element("option", { value: one, textContent: one }));
    const steps = ["▼", "▲"].map((sign, up) => {
      const button = element("button", { type: "button", textContent: sign });
      button.addEventListener("click", () => move(EDITS.stepped(state, side, up === 1)));
      return button;
    });
    name.addEventListener("change", () => move(EDITS.chosen(state, side, name.value)));
    text.addEventListener("change", () => move(EDITS.typed(state, side, text.value)));
    return { name, text, steps, bits, shape: "", labels: [label(name), label(text)] };
  });
  const scaleLabel = label(scale);
  scale.addEventListener("change", () => move(EDITS.scaled(state, scale.value)));
  const drawBits = (side) => { // a button for each bit, pressed where it is 1; a tree's fields depend on its bits
    const { bits } = sides[side], encoding = ENCODINGS[state.names[side]], fields = encoding.fields(state.codes[side] ?? 0n);
    const shape = JSON.stringify([language, encoding.bits, fields.map(([name, digits]) => [name, digits.length])]);
    const focused = [...bits.querySelectorAll("button")].indexOf(document.activeElement);
    if (shape !== sides[side].shape) {
      sides[side].shape = shape;
      let bit = encoding.bits;
      bits.replaceChildren(...fields.map(([field, digits]) => {
        const group = element("div"), fill = BITS.fills[field];
        for (let i = 0; i < digits.length; i += 1) {
          const at = (bit -= 1), button = element("button", { type: "button", title: `${named(field)}, bit ${at}` });
          button.style.setProperty("--fill", fill);
          button.addEventListener("click", () => move(EDITS.toggled(state, side, at)));
          group.append(button);
        }
        const holder = element("div");
        holder.append(group);
        holder.insertAdjacentHTML("beforeend", note(named(field)));
        return holder;
      }));
      if (focused >= 0) bits.querySelectorAll("button")[focused]?.focus();
    }
    const shown = fields.map(([, digits]) => digits).join("");
    bits.querySelectorAll("button").forEach((button, i) => {
      button.textContent = shown[i];
      button.setAttribute("aria-pressed", shown[i] === "1");
    });
  };
  const move = (after) => {
    state = after;
    sides.forEach(({ name, text, steps, labels }, side) => {
      const value = valueAt(state, side);
      name.value = state.names[side];
      text.value = value === null ? "" : nearText(value).replace(/^≈ /, "");
      text.placeholder = say("value or code: 0.1, 1/3, 0x2e66");
      labels[0].firstChild.data = side ? say("right") : say("left");
      labels[1].firstChild.data = say("value");
      steps.forEach((button, up) => { button.title = up ? say("next value above") : say("next value below"); });
      drawBits(side);
    });
    scaleLabel.firstChild.data = say("scale");
    scale.value = repr(state.scale).replace(/\.0$/, "");
    scaleLabel.hidden = state.names.every((name) => "emin" in ENCODINGS[name]);
    view.innerHTML = bitsPicture(state);
  };
  host.replaceChildren(...sides.flatMap(({ labels, steps, bits }) => [row(...labels, ...steps), bits]), row(scaleLabel), view);
  move(state);
  return () => move(state);
};
