// What inputs still need in JupyterLab to be heard and to be moved without a mouse.
(() => {
  if (window.fplabInputs) return; // one for the page is enough
  // A slider's handle and readout have a label beside them, which is linked to neither.
  const name = () => {
    for (const slider of document.querySelectorAll(".widget-slider")) {
      const label = slider.querySelector(".widget-label")?.textContent;
      for (const part of slider.querySelectorAll(".noUi-handle, .widget-readout"))
        if (label && part.getAttribute("aria-label") !== label) part.setAttribute("aria-label", label);
      slider.querySelector(".widget-readout")?.setAttribute("role", "textbox"); // it can be typed into
    }
  };
  window.fplabInputs = new MutationObserver(name); // sliders come later, and labels change with the language
  window.fplabInputs.observe(document.body, { childList: true, subtree: true });
  name();
  // Keys that choose from a list would leave it otherwise: arrows go to another cell, an "a" inserts one.
  const list = (event) => event.target instanceof Element && event.target.matches(".jupyter-widgets select");
  const plain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;
  const runs = (event) => event.key === "Enter" && event.shiftKey;
  window.addEventListener("keydown", (event) => {
    if (list(event) && plain(event) && !runs(event)) event.stopPropagation();
  }, true); // before JupyterLab, which listens at the document
})();
