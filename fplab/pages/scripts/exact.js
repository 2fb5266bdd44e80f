// Exact numbers and how they are written, as fplab.exact, fplab.numerals and fplab.draw.page do it: a test compares.
const gcd = (a, b) => { while (b) [a, b] = [b, a % b]; return a < 0n ? -a : a; };
const bitLength = (n) => (n ? (n < 0n ? -n : n).toString(2).length : 0);
const isPowerOfTwo = (n) => n > 0n && (n & (n - 1n)) === 0n;

// A rational number [numerator, denominator] in its lowest terms.
const ratio = (n, d = 1n) => { const g = gcd(n, d) || 1n; return d < 0n ? [-n / g, -d / g] : [n / g, d / g]; };
const timesTwoTo = ([n, d], k) => (k >= 0 ? ratio(n << BigInt(k), d) : ratio(n, d << BigInt(-k)));
const times = (a, b) => ratio(a[0] * b[0], a[1] * b[1]);
const minus = (a, b) => ratio(a[0] * b[1] - b[0] * a[1], a[1] * b[1]);
const plus = (a, b) => minus(a, [-b[0], b[1]]);
const magnitude = ([n, d]) => [n < 0n ? -n : n, d];
const less = (a, b) => a[0] * b[1] < b[0] * a[1];
const ofNumber = (x) => {
  let d = 1n;
  while (!Number.isInteger(x)) { x *= 2; d *= 2n; }
  return ratio(BigInt(x), d);
};
// The double nearest to a rational, ties to even; one that only a subnormal double is near is to be one.
const toNumber = ([n, d]) => {
  const shift = Math.max(56 - (bitLength(n) - bitLength(d)), 0), top = magnitude([n, d])[0] << BigInt(shift);
  const half = Math.min(shift, 1000), size = Number((top / d) | BigInt(top % d !== 0n)) / 2 ** half / 2 ** (shift - half);
  return n < 0n ? -size : size;
};
const floorLog2 = ([n, d]) => {
  const guess = bitLength(n) - bitLength(d);
  return less([n, d], timesTwoTo([1n, 1n], guess)) ? guess - 1 : guess;
};
// The integer nearest to a rational that is not negative, ties to even.
const rounded = ([n, d]) => {
  const low = n / d, twice = 2n * (n % d);
  return low + (twice > d || (twice === d && low % 2n === 1n) ? 1n : 0n);
};

// A number with a sign: finite (its magnitude a rational), "inf", "nan" or "snan".
const finite = (value, zeroIsNegative = false) =>
  ({ kind: "finite", negative: value[0] < 0n || (value[0] === 0n && zeroIsNegative), magnitude: magnitude(value) });
const special = (kind, negative = false, payload = [1n, 2n]) => ({ kind, negative, magnitude: [0n, 1n], payload });
const isZero = (x) => x.kind === "finite" && x.magnitude[0] === 0n;
const valueOf = (x) => (x.negative ? [-x.magnitude[0], x.magnitude[1]] : x.magnitude);
const exactly = (x) => (Number.isNaN(x) ? special("nan") : Number.isFinite(x)
  ? finite(ofNumber(x), Object.is(x, -0)) : special("inf", x < 0));

// --- as text ---------------------------------------------------------------------------------------------------
// The first digits of a positive rational, rounded to even, and its decimal exponent.
const leadingDigits = ([n, d], count) => {
  let exponent = Math.floor((bitLength(n) - bitLength(d)) * 0.30103) + 1;
  const scaled = (places) => (places >= 0 ? [n * 10n ** BigInt(places), d] : [n, d * 10n ** BigInt(-places)]);
  while (((a) => a[0] < a[1])(scaled(-exponent))) exponent -= 1;
  let digits = String(rounded(scaled(count - 1 - exponent)));
  if (digits.length > count) { digits = digits.slice(0, count); exponent += 1; }
  return [digits, exponent];
};
const withPoint = (digits, exponent) => {
  if (exponent < 0) return "0." + "0".repeat(-exponent - 1) + digits;
  const whole = digits.padEnd(exponent + 1, "0");
  return whole.slice(0, exponent + 1) + (whole.length > exponent + 1 ? "." + whole.slice(exponent + 1) : "");
};
const short = (x, count = 6) => {
  if (x[0] === 0n) return "0";
  const sign = x[0] < 0n ? "-" : "", [found, exponent] = leadingDigits(magnitude(x), count);
  const digits = found.replace(/0+$/, "");
  if (exponent >= -5 && exponent < count) return sign + withPoint(digits, exponent);
  return `${sign}${digits[0]}${digits.length > 1 ? "." : ""}${digits.slice(1)}e${exponent < 0 ? "-" : "+"}${Math.abs(exponent)}`;
};
const signed = (x, count = 6) => (x[0] === 0n ? "0" : (x[0] > 0n ? "+" : "") + short(x, count));
const decimalText = (x) => {
  const sign = x[0] < 0n ? "-" : "", places = bitLength(x[1]) - 1;
  const digits = String(magnitude(x)[0] * 5n ** BigInt(places));
  if (digits.length > places && digits.length <= 25 + places) {
    const whole = digits.slice(0, digits.length - places);
    return sign + whole + (places ? "." + digits.slice(digits.length - places) : "");
  }
  if (x[0] && places - digits.length < 6 && digits.length <= places) return `${sign}0.${digits.padStart(places, "0")}`;
  const exponent = digits.length - 1 - places, rest = digits.slice(1).replace(/0+$/, "");
  return `${sign}${digits[0]}${rest ? "." : ""}${rest}e${exponent < 0 ? "-" : "+"}${Math.abs(exponent)}`;
};
const binaryText = (x) => {
  if (x[0] === 0n) return "0";
  const [top] = magnitude(x), shift = bitLength(top & -top) - bitLength(x[1]);
  const scaled = timesTwoTo(x, -shift)[0];
  const product = scaled === 1n ? `2^${shift}` : scaled === -1n ? `-2^${shift}` : `${scaled}·2^${shift}`;
  const plain = x[1] === 1n ? String(x[0]) : `${x[0]}/${x[1]}`;
  if (top < 10n ** 9n && x[1] < 10n ** 9n) return shift === 0 ? plain : `${plain} = ${product}`;
  return product;
};
const superscript = (n) => String(n).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
const twoTo = (exponent) => "2" + superscript(exponent);
const withCommas = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");
// Python's "g" with so many digits, with commas where asked.
const general = (x, count = 6, commas = false) => {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x < 0 ? "-inf" : "inf";
  if (x === 0) return Object.is(x, -0) ? "-0" : "0";
  const [found, exponent] = leadingDigits(magnitude(ofNumber(x)), count), digits = found.replace(/0+$/, "");
  const sign = x < 0 ? "-" : "";
  if (exponent < -4 || exponent >= count) {
    const power = String(Math.abs(exponent)).padStart(2, "0");
    return `${sign}${digits[0]}${digits.length > 1 ? "." : ""}${digits.slice(1)}e${exponent < 0 ? "-" : "+"}${power}`;
  }
  const [whole, part] = withPoint(digits, exponent).split(".");
  return sign + (commas ? withCommas(whole) : whole) + (part ? "." + part : "");
};
// Python's repr of a float: the fewest digits that say which it is.
const repr = (x) => {
  if (!Number.isFinite(x)) return general(x);
  if (x === 0) return Object.is(x, -0) ? "-0.0" : "0.0";
  const [mantissa, power] = Math.abs(x).toExponential().split("e"), exponent = Number(power), sign = x < 0 ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    return `${sign}${mantissa}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const text = withPoint(mantissa.replace(".", ""), exponent);
  return sign + text + (text.includes(".") ? "" : ".0");
};

// --- as a page -------------------------------------------------------------------------------------------------
const MARKS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
const escaped = (text) => String(text).replace(/[&<>"']/g, (mark) => MARKS[mark]);
const panel = (...blocks) => {
  const inside = blocks.filter(Boolean).map((block) => `<div style="margin:.35em 0">${block}</div>`).join("");
  const style = "color:inherit;line-height:1.45;max-width:70em;display:grid;grid-template-columns:minmax(0,1fr)";
  return `<div class="fplab-picture" style="${style}">${inside}</div>`;
};
const beside = (...blocks) => {
  const inside = blocks.map((block) => `<div style="flex:1 1 22em;min-width:0">${block}</div>`).join("");
  return `<div style="display:flex;flex-wrap:wrap;gap:.5em 2em">${inside}</div>`;
};
const note = (text) => `<div style="opacity:.85">${escaped(text)}</div>`;
const title = (text) => `<b>${escaped(text)}</b>`;
const facts = (pairs) => {
  const inside = pairs.map(([label, text]) => `<span style="opacity:.8">${escaped(label)}</span>`
    + `<span style="overflow-wrap:anywhere">${escaped(text)}</span>`).join("");
  return `<div style="display:grid;grid-template-columns:max-content 1fr;gap:0 1em">${inside}</div>`;
};
const refusal = (text) => '<div role="alert" style="border-left:4px solid #d9730d;padding:.4em .8em;margin:.4em 0;overflow-wrap:anywhere">'
  + `<b>⚠ ${say("Not possible:")}</b> ${escaped(text)}</div>`;
const afterColon = (first, then) => say("{first}: {then}", { first, then });
const listed = (...texts) => texts.join(say(", "));

// A drawing, grown mark by mark, as fplab.draw.scene writes it.
const pixel = (x) => {
  if (Number.isInteger(x)) return String(x === 0 ? 0 : x);
  const tie = Number.isInteger(8 * x), hundreds = Math.floor(100 * x), rest = 100 * x - hundreds;
  const text = tie ? ((hundreds + (rest > 0.5 || (rest === 0.5 && hundreds % 2 !== 0) ? 1 : 0)) / 100).toFixed(2) : x.toFixed(2);
  return text.replace(/\.?0+$/, "");
};
const MONO = "ui-monospace,'DejaVu Sans Mono',monospace";
const [BLUE, ORANGE, GREY] = ["#3b82d6", "#d9730d", "#808890"];
const ATTRIBUTES = {}; // as SVG writes them: a drawing has the same few thousands of times
const attribute = (name) => (ATTRIBUTES[name] ??= name.replace(/_$/, "").replaceAll("_", "-"));
class Scene {
  constructor(width, height) { Object.assign(this, { width, height, marks: [] }); }
  add(tag, given, text = "") {
    const attributes = Object.entries(given).map(([name, value]) =>
      ` ${attribute(name)}="${typeof value === "number" ? pixel(value) : escaped(value)}"`).join("");
    this.marks.push(`<${tag}${attributes}` + (text === "" ? "/>" : `>${escaped(text)}</${tag}>`));
  }
  rect(x, y, width, height, fill, given) { this.add("rect", { x, y, width, height, fill, ...given }); }
  line(x1, y1, x2, y2, given) { this.add("line", { x1, y1, x2, y2, stroke: "currentColor", ...given }); }
  path(points, given) {
    const places = points.map(([x, y]) => `${pixel(x)},${pixel(y)}`).join(" ");
    this.add("polyline", { points: places, fill: "none", stroke: "currentColor", ...given });
  }
  text(x, y, text, anchor = "start", size = 12, given = {}) {
    this.add("text", { x, y, text_anchor: anchor, font_size: size, ...given }, String(text));
  }
  svg(spoken) {
    const box = `0 0 ${pixel(this.width)} ${pixel(this.height)}`, least = pixel(0.39 * this.width);
    const style = `display:block;max-width:100%;min-width:${least}px;height:auto;font-family:system-ui,sans-serif`;
    return `<div style="overflow-x:auto"><svg role="img" aria-label="${escaped(spoken)}" width="${pixel(this.width)}" `
      + `viewBox="${box}" fill="currentColor" style="${style}">${this.marks.join("")}</svg></div>`;
  }
}
