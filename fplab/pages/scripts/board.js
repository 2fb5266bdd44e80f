// A widget of inputs that change a state, and its picture, as fplab.widgets.shell has them.
const inWords = (error) => { // what was refused; an error of the script itself is not hidden
  if (!error.words) throw error;
  return refusal(say(...error.words));
};
const pictureOf = (render, state) => {
  try { return render(state); } catch (error) { return inWords(error); }
};
// `check` refuses a state before it is taken.
const board = (name, render, check = () => {}) => {
  WIDGETS[name] = (host, given) => {
    let state = given, possible = null;
    const view = element("div"), inputs = BOARD[name].controls.map(({ field, label: said, options, low, high }) => {
      const made = element(options ? "select" : "input", options ? {} : low === null ? { type: "text", size: 12 } : { type: "range", min: low, max: high });
      const read = element("output"), values = options?.map(({ value }) => value);
      made.append(...(options ?? []).map(() => element("option")));
      made.addEventListener(low === null && !options ? "change" : "input", () =>
        move({ ...state, [field]: options ? values[made.selectedIndex] : low === null ? made.value : Number(made.value) }));
      const follow = () => {
        holder.firstChild.data = said[language];
        options?.forEach((option, i) => { made.options[i].textContent = option[language]; });
        if (options) made.selectedIndex = values.indexOf(state[field]); else made.value = state[field];
        if (low !== null) read.textContent = state[field];
      };
      const holder = label(made, ...(low === null ? [] : [read]));
      return { holder, follow };
    });
    const buttons = BOARD[name].actions.map(({ text, fields }) => {
      const button = element("button", { type: "button", textContent: text });
      button.addEventListener("click", () => move({ ...state, ...fields }));
      return button;
    });
    const shown = () => {
      try {
        const found = render(state);
        possible = state;
        return found;
      } catch (error) {
        return inWords(error) + (possible ? note(say("Below is still the last possible choice.")) + render(possible) : "");
      }
    };
    const move = (after) => {
      let problem = "";
      try { check(after); state = after; } catch (error) { problem = inWords(error); }
      for (const { follow } of inputs) follow();
      view.innerHTML = problem + shown();
    };
    host.replaceChildren(row(...inputs.map(({ holder }) => holder)), ...(buttons.length ? [row(...buttons)] : []), view);
    move(state);
    return () => move(state);
  };
};
