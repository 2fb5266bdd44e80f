// The chosen language: the style sheet shows it; this remembers it from page to page. Where none was chosen it is the
// browser's. A page's address may end in #zh.
(() => {
  const inputs = document.querySelectorAll('input[name="language"]');
  const choose = (language, keep) => {
    for (const input of inputs) input.checked = input.value === language;
    document.documentElement.lang = language;
    document.title = document.body.dataset[language];
    if (keep) try { localStorage.setItem("fplab-language", language); } catch { /* the page works without */ }
  };
  let before = null;
  try { before = localStorage.getItem("fplab-language"); } catch { /* the page works without */ }
  const wanted = [location.hash.slice(1), before, navigator.language.slice(0, 2).toLowerCase()];
  choose(wanted.find((language) => ["en", "zh"].includes(language)) ?? "en", false);
  for (const input of inputs) input.addEventListener("change", () => choose(input.value, true));
})();
