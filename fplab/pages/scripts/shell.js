// Widgets of a page without a kernel: each begins at the state that the page was made with, in the page's language.
const WIDGETS = {};
let language = document.documentElement.lang.slice(0, 2);
const betweenWide = /(?<=[\u2e80-\u9fff\uff00-\uffef]) (?=[\u2e80-\u9fff\uff00-\uffef])/g; // Chinese has no space there
const filled = (message, values = {}) => {
  const text = message.replace(/\{(\w+)[^}]*\}/g, (all, name) => {
    const value = values[name];
    return Array.isArray(value) ? say(...value) : value ?? all;
  });
  return language !== "en" && Object.keys(values).length ? text.replace(betweenWide, "") : text;
};
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

// Pictures drawn beforehand: all that the last inputs lead to are one deflated pack, unpacked when it is asked for.
WIDGETS.drawn = (host, given, { controls, together, note, pictures }) => {
  const at = controls.map((control) => control.at), unpacked = new Map(), first = controls.length - together;
  const view = element("div"), told = element("small");
  const inputs = controls.map((control, i) => {
    const isRange = control.range, input = element(isRange ? "input" : "select", isRange ? { type: "range", min: 0, max: control.options.length - 1 } : {});
    const read = element("output");
    if (!isRange) input.append(...control.options.map((_, place) => element("option", { value: place })));
    input.disabled = control.options.length < 2;
    input.addEventListener("input", () => { at[i] = Number(input.value); move(); });
    return { input, read, control, made: label(input, ...(isRange ? [read] : [])) };
  });
  const last = inputs.at(-1), steps = last.control.steps ? [-1, 1].map((by) => {
    const button = element("button", { type: "button" });
    button.addEventListener("click", () => {
      at[at.length - 1] = Math.min(Math.max(Number(last.input.value) + by, 0), Number(last.input.max));
      move();
    });
    return button;
  }) : [];
  view.addEventListener("click", ({ target }) => { // a box of a diagram that stands for a step
    const place = [...view.querySelectorAll(".edge")].indexOf(target);
    if (steps.length && place >= 0) { at[at.length - 1] = place; move(); }
  });
  const unpack = async (place) => {
    const bytes = Uint8Array.from(atob(pictures[place]), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const place = (begin, end) =>
    controls.slice(begin, end).reduce((sum, control, i) => sum * control.options.length + at[begin + i], 0);
  const move = async () => {
    const pack = place(0, first);
    if (!unpacked.has(pack)) unpacked.set(pack, unpack(pack));
    const found = await unpacked.get(pack);
    if (pack !== place(0, first)) return; // moved on
    const drawings = found[language];
    if (steps.length) { // the end of the steps: beyond it nothing changes
      const begin = place(first) - at.at(-1);
      let end = last.control.options.length - 1;
      while (end && drawings[begin + end] === drawings[begin + end - 1]) end -= 1;
      at[at.length - 1] = Math.min(at.at(-1), end);
      last.input.max = end;
      last.input.disabled = end === 0;
      steps.forEach((button, i) => {
        button.textContent = [say("◀ step"), say("step ▶")][i];
        button.disabled = at.at(-1) === [0, end][i];
      });
    }
    inputs.forEach(({ input, read, control, made }, i) => {
      made.firstChild.data = control.label[language];
      if (!control.range) [...input.options].forEach((option, n) => { option.textContent = control.options[n][language]; });
      input.value = at[i];
      read.textContent = control.steps ? at[i] + 1 : control.options[at[i]][language];
      input.setAttribute("aria-valuetext", read.textContent);
    });
    told.textContent = note[language];
    view.innerHTML = found.drawings[drawings[place(first)]].map((part) => found.parts[part]).join("");
  };
  host.replaceChildren(row(...inputs.map(({ made }) => made), ...steps), told, view);
  move();
  return move;
};
