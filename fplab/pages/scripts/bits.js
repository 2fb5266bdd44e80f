// The bit editor: integers and codebooks, what edits do, and the picture, as fplab.widgets.bits does it.
// What has neither NaN nor infinity takes a number as a double, within the range of FP32.
const asDouble = (x, name) => {
  if (x.kind !== "finite") refuse("{format} has neither NaN nor infinity.", { format: name });
  const most = 3.4028234663852886e38;
  if (less(ofNumber(most), x.magnitude)) return x.negative ? -most : most;
  const size = FLOATS.sizeOf(ENCODINGS.fp64, FLOATS.nearest(ENCODINGS.fp64, { ...x, negative: false }));
  const found = toNumber(size);
  return x.negative ? -found : found;
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

for (const one of BITS) {
  if (one.table) one.order = [...new Set(one.table.map((v) => v + 0))].sort((a, b) => a - b);
  ENCODINGS[one.name] = enrolled(one, one.table ? BOOKS : INTEGERS);
}

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
        const group = element("div"), fill = FORMATS.fills[field];
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
