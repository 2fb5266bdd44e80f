// The chosen language: the style sheet shows it; this remembers it from page to page. A page's address may end in #zh.
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
  const asked = location.hash.slice(1);
  choose(["en", "zh"].includes(asked) ? asked : before === "zh" ? "zh" : "en", false);
  for (const input of inputs) input.addEventListener("change", () => choose(input.value, true));
})();
