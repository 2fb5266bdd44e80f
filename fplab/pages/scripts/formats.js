// Formats, roundings and what is typed, as fplab.exact and fplab.inspection have them.
const ALL_ONES = (bits) => (1n << BigInt(bits)) - 1n;
const digitsOf = (code, bits) => code.toString(2).padStart(bits, "0");
const refuse = (...words) => { throw { words }; }; // what a message says, in the language in which it is shown

// Whether an inexact magnitude goes to the upper one of its neighbours. `half`: -1, 0, 1 below, at, above the middle.
const ROUNDINGS = {
  rne: (half, odd) => half > 0 || (half === 0 && odd), rna: (half) => half >= 0, rtz: () => false,
  rtp: (half, odd, negative) => !negative, rtn: (half, odd, negative) => negative, odd: (half, odd) => !odd,
};
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
  nearest(f, x) { return this.roundTo(f, x, "rne"); },
  roundTo(f, x, mode) {
    if (x.kind === "nan" || x.kind === "snan") return this.nanCode(f, x);
    const sign = x.negative ? f.sign_mask : 0n;
    if ((isZero(x) && !f.zero) || (x.negative && !f.signed && !isZero(x))) return this.nanCode(f, special("nan"));
    if (isZero(x)) return f.negative_zero ? sign : 0n;
    if (x.kind === "finite") {
      const exponent = Math.max(floorLog2(x.magnitude), f.emin);
      const [n, d] = timesTwoTo(x.magnitude, f.fraction_bits - exponent), units = n / d, rest = n % d;
      let code = (BigInt(exponent - f.emin) << f.places) + units - (f.zero ? 0n : 1n << f.places);
      if (code < 0n) code = 0n; // no zero to round to: the smallest value
      else {
        const odd = f.fraction_bits === 0 ? code > 0n || !f.zero : code % 2n === 1n, twice = 2n * rest;
        const half = Number(twice > d) - Number(twice < d); // 0: a tie
        if (rest && ROUNDINGS[mode](half, odd, x.negative)) code += 1n;
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

const enrolled = (one, way) => { // a record of Python's with its methods
  for (const key of ["sign_mask", "max_code", "inf_code", "nan_code"]) if (one[key] != null) one[key] = BigInt(one[key]);
  one.places = BigInt(one.fraction_bits ?? 0);
  for (const name of ["fields", "value", "nearest", "neighbour", "kind", "formula"]) one[name] = (...given) => way[name](one, ...given);
  return one;
};
const ENCODINGS = Object.fromEntries(FORMATS.records.map((one) => [one.name, enrolled(one, FLOATS)]));
const sizeAt = (f, code) => toNumber(FLOATS.sizeOf(f, BigInt(code)));
const named = (name) => FORMATS.names[name]?.[language] ?? name;

// --- what is typed ---------------------------------------------------------------------------------------------
const quoted = (text) => {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  return quote + text.replaceAll("\\", "\\\\").replaceAll(quote, "\\" + quote) + quote;
};
const ALLOWED = 'a number; a decimal text such as "0.1" or "-2.5e-8", taken exactly; a ratio "1/3"; a power of two "2^-14" or "1.5·2^-14"; a hexadecimal float "0x1.8p3"; "inf", "nan"; or a code of a format, "fp16:0x3c00" or "fp16:0b0011110000000000"';
const parse = (text) => {
  const found = parsed(text), [n, d] = found.magnitude;
  if (Math.max(bitLength(n), bitLength(d)) > FORMATS.most_bits) {
    refuse("the number is too large, small or long: inspect works out at most {bits} bits exactly.", { bits: FORMATS.most_bits });
  }
  return found;
};
const parsed = (text) => {
  const word = text.trim().toLowerCase().replaceAll("_", "");
  if (word.length > FORMATS.longest_text) {
    refuse("a text of {n} characters is too long; allowed: {most}, or a Fraction.", { n: word.length, most: FORMATS.longest_text });
  }
  if (word.includes(":")) return ofCode(text.trim());
  const bare = word.replace(/^[+-]+/, ""), negative = word.startsWith("-");
  if (["inf", "infinity", "nan", "snan"].includes(bare)) return special(bare.startsWith("inf") ? "inf" : bare, negative);
  const sane = (power) => {
    if (power.length <= 8 && Math.abs(Number(power)) <= FORMATS.largest_exponent) return;
    refuse("the exponent of {text} is beyond ±{most}, the largest that inspect works out exactly.",
      { text: quoted(text), most: FORMATS.largest_exponent });
  };
  let match = /^([+-]?)([0-9]+)\s*\/\s*([0-9]+)$/.exec(word);
  if (match) {
    if (BigInt(match[3]) === 0n) refuse("{text} divides by zero; allowed: {allowed}.", { text: quoted(text), allowed: [ALLOWED] });
    return finite(ratio(BigInt(match[2]) * (negative ? -1n : 1n), BigInt(match[3])), negative);
  }
  match = /^[+-]?(?:(?:([0-9]+)\.?([0-9]*)|\.([0-9]+))\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?[0-9]+)$/.exec(word);
  if (match) {
    sane(match[4]);
    const part = match[3] ?? match[2] ?? "", factor = ratio(BigInt((match[1] ?? "") + part || "1"), 10n ** BigInt(part.length));
    const size = timesTwoTo(factor, Number(match[4]));
    return finite([negative ? -size[0] : size[0], size[1]], negative);
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
  const match = /^([+-]?)(0x(?:_?[0-9a-f])+|0b(?:_?[01])+|0o(?:_?[0-7])+|0(?:_?0)*|[1-9](?:_?[0-9])*)$/i.exec(text);
  return match && BigInt(match[2].replaceAll("_", "")) * (match[1] === "-" ? -1n : 1n);
};
// The name nearest to one that is unknown, as fplab.errors and Python's difflib find it.
const inCommon = (a, b) => { // letters in the longest common run, and in those before and after it
  let [size, i, j] = [0, 0, 0];
  for (let p = 0; p < a.length; p += 1) {
    for (let q = 0; q < b.length; q += 1) {
      let n = 0;
      while (p + n < a.length && a[p + n] === b[q + n]) n += 1;
      if (n > size) [size, i, j] = [n, p, q];
    }
  }
  return size && size + inCommon(a.slice(0, i), b.slice(0, j)) + inCommon(a.slice(i + size), b.slice(j + size));
};
const numbersAlike = (given, name) => {
  const found = given.match(/[0-9]+/g) ?? [];
  return !found.length || found.some((one) => (name.match(/[0-9]+/g) ?? []).some((other) => {
    const [mine, left] = [one, other].map((text) => [...text.replaceAll("0", "")]), most = Math.max(mine.length, left.length);
    const same = mine.filter((digit) => left.includes(digit) && left.splice(left.indexOf(digit), 1)).length;
    return Math.abs(one.length - other.length) <= 1 && 2 * same >= most;
  }));
};
const nearestName = (given) => {
  const known = Object.keys(FORMATS.aliases), family = known.filter((name) => name.startsWith(given + "_"));
  if (/[0-9]$/.test(given) && family.length) return family;
  const near = known.filter((name) => numbersAlike(given, name))
    .map((name) => ({ name, share: (2 * inCommon(name, given)) / (name.length + given.length) }))
    .filter(({ share }) => share >= 0.5).sort((a, b) => b.share - a.share || (a.name < b.name ? 1 : -1));
  return near.slice(0, 1).map(({ name }) => name);
};
const hex = (code, bits) => "0x" + code.toString(16).padStart(Math.ceil(bits / 4), "0");
const ofCode = (text) => {
  const [, given, digits] = /^([^:]*):(.*)$/s.exec(text).map((part) => part.trim());
  const format = ENCODINGS[FORMATS.aliases[given.toLowerCase()]];
  if (!format) {
    const near = nearestName(given.toLowerCase()).map((name) => quoted(name)).join(say(" or "));
    refuse("{text}{hint}", {
      text: ["unknown {kind} {given}. Allowed: {allowed}.", { kind: ["format"], given: quoted(given), allowed: FORMATS.formats.join(", ") }],
      hint: near && [" Did you mean {names}?", { names: near }],
    });
  }
  const code = integerOf(digits.replaceAll(" ", "")), { name, bits } = format;
  if (code === null) {
    refuse('cannot read {text} as a code of {format}; allowed: "{format}:0x..." in hexadecimal, "{format}:0b..." in binary, or a plain integer.',
      { text: quoted(digits), format: name });
  }
  if (code < 0n || code >> BigInt(bits)) {
    refuse("{text} is not a code of {format}, which has {bits} bits; allowed: 0 to {last}.",
      { text: digits, format: name, bits, last: hex(ALL_ONES(bits), bits) });
  }
  return format.value(code);
};
