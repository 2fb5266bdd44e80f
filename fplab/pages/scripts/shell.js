// Widgets of a page without a kernel: each begins at the state that the page was made with, in the page's language.
const WIDGETS = {};
let language = document.documentElement.lang;
const filled = (message, values = {}) => message.replace(/\{(\w+)[^}]*\}/g, (all, name) => {
  const value = values[name];
  return Array.isArray(value) ? say(...value) : value ?? all;
});
// A message by its English; a value that is a list is a message itself.
const say = (message, values) => filled((language !== "en" && WORDS[message]) || message, values);
const sayOf = (context, message) => (language !== "en" && WORDS[`${context}|${message}`]) || message;
const element = (tag, given = {}) => Object.assign(document.createElement(tag), given);
const row = (...parts) => {
  const made = element("div", { className: "fplab-inputs" });
  made.append(...parts);
  return made;
};
const label = (...inputs) => {
  const made = element("label");
  made.append("", " ", ...inputs);
  return made;
};

// Pictures drawn beforehand: all that the last input leads to are one deflated list, unpacked when it is asked for.
WIDGETS.drawn = (host, given, { controls, pictures }) => {
  const at = controls.map((control) => control.at), unpacked = new Map();
  const view = element("div"), last = controls.at(-1);
  const inputs = controls.map((control, i) => {
    const isRange = control.range, input = element(isRange ? "input" : "select", isRange ? { type: "range", min: 0, max: control.options.length - 1 } : {});
    const read = element("output");
    if (!isRange) input.append(...control.options.map((_, place) => element("option", { value: place })));
    input.addEventListener("input", () => { at[i] = Number(input.value); move(); });
    return { input, read, control, made: label(input, ...(isRange ? [read] : [])) };
  });
  const unpack = async (place) => {
    const bytes = Uint8Array.from(atob(pictures[place]), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const move = async () => {
    inputs.forEach(({ input, read, control, made }, i) => {
      made.firstChild.data = control.label[language];
      if (!control.range) [...input.options].forEach((option, place) => { option.textContent = control.options[place][language]; });
      input.value = at[i];
      read.textContent = control.options[at[i]][language];
      input.setAttribute("aria-valuetext", read.textContent);
    });
    const place = controls.slice(0, -1).reduce((sum, control, i) => sum * control.options.length + at[i], 0);
    if (!unpacked.has(place)) unpacked.set(place, unpack(place));
    const found = await unpacked.get(place);
    if (place !== controls.slice(0, -1).reduce((sum, control, i) => sum * control.options.length + at[i], 0)) return; // moved on
    view.innerHTML = found[language][at.at(-1)].map((part) => found.parts[part]).join("");
  };
  host.replaceChildren(row(...inputs.map(({ made }) => made)), view);
  move();
  return move;
};
