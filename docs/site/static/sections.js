// Makes results of the search lead to sections: see docs/site/sections.py.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const perform = Search._performSearch;
  Search._performSearch = (...query) => {
    const { docnames, titles } = Search._index;
    const found = new Map();
    const pages = new Set(); // those with a section that has all the words
    for (const result of perform(...query).reverse()) { // the best is last
      const [page, section] = result[0].split("#");
      if (section !== undefined) {
        result[1] = titles[docnames.indexOf(result[0])];
        result[0] = page;
        result[2] = "#" + section;
        pages.add(page);
      }
      const place = page + result[2];
      if (!found.has(place)) found.set(place, result);
    }
    return [...found.values()]
      .filter(([page, , anchor, , , , kind]) =>
        anchor || !pages.has(page) || kind !== SearchResultKind.text)
      .reverse();
  };
});
