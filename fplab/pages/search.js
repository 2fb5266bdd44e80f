// Sections that hold every word asked for, those that have it in their title first.
(() => {
  const asked = new URLSearchParams(location.search).get("q")?.trim() ?? "";
  document.querySelector('input[type="search"]').value = asked;
  document.getElementById("searched").textContent = asked;
  const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const [file, language, anchor, title, text] of words.length ? SECTIONS : []) {
    const low = [title.toLowerCase(), text.toLowerCase()];
    if (!words.every((word) => low[0].includes(word) || low[1].includes(word))) continue;
    const inTitle = words.filter((word) => low[0].includes(word)).length;
    const other = language !== "" && language !== document.documentElement.lang;
    const exact = low[0] === words.join(" ") || low[0].endsWith("." + words[0]);
    found.push({ file, anchor, title, text, rank: 2 * inTitle + exact - 9 * other, at: Math.max(0, low[1].indexOf(words[0]) - 60) });
  }
  found.sort((a, b) => b.rank - a.rank);
  for (const { file, anchor, title, text, at } of found.slice(0, 60)) {
    const item = document.createElement("li"), link = document.createElement("a"), said = document.createElement("p");
    link.href = file + (anchor ? "#" + anchor : "");
    link.textContent = title;
    said.textContent = (at ? "… " : "") + text.slice(at, at + 180);
    const where = document.createElement("small");
    where.textContent = " " + file.replace(/\.html$/, "");
    item.append(link, where, said);
    document.getElementById("results").append(item);
  }
  document.getElementById("nothing").hidden = found.length > 0 || !words.length;
})();
