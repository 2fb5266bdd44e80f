const again = [...document.querySelectorAll(".fplab-live[data-live]")].map((host) => {
  const { widget, state, live } = { ...host.dataset, state: JSON.parse(host.dataset.state), live: JSON.parse(host.dataset.live) };
  return (WIDGETS[widget] ?? WIDGETS.drawn)(host, state, live);
});
new MutationObserver(() => {
  language = document.documentElement.lang.slice(0, 2);
  for (const draw of again) draw();
}).observe(document.documentElement, { attributeFilter: ["lang"] });
