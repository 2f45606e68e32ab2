"use strict";
// Click a column's header to sort: first with the largest number or A on top, then reversed.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, table = head.closest("table"), body = table.tBodies[0];
    const index = head.cellIndex, value = (row) => row.cells[index].dataset.sort;
    const rows = [...body.rows];
    const isText = rows.some((row) => value(row) !== "" && Number.isNaN(Number(value(row))));
    const first = isText ? "ascending" : "descending";
    const order = head.ariaSort === first ? (isText ? "descending" : "ascending") : first;
    const sign = order === "ascending" ? 1 : -1;
    const compare = (a, b) => isText ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // empty cells are always last
      return sign * compare(x, y);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.ariaSort = order;
    body.append(...rows);
  });
}

// Switch between steps and wall time, and search for games.
const games = document.querySelector("#curves");
for (const button of document.querySelectorAll(".switch button")) {
  button.addEventListener("click", () => {
    games.dataset.axis = button.value;
    for (const other of button.parentElement.children) other.ariaPressed = String(other === button);
  });
}
const filter = document.querySelector("#filter");
const cards = [...document.querySelectorAll(".card")];
filter?.addEventListener("input", () => {
  const wanted = filter.value.trim().toLowerCase();
  for (const card of cards) card.hidden = !card.dataset.game.toLowerCase().includes(wanted);
});

// The enlarged view of a game: both curves and its scores.
const dialog = document.querySelector("dialog");
let shown = 0;
function show(index) {
  shown = index;
  const card = cards[index];
  dialog.querySelector("h2").textContent = card.dataset.game;
  const copies = [...card.querySelectorAll("img")].map((image) => {
    const copy = image.cloneNode();
    copy.loading = "eager";
    copy.className = "";
    return copy;
  });
  dialog.querySelector(".pair").replaceChildren(...copies);
  dialog.querySelector(".details").replaceChildren(card.nextElementSibling.content.cloneNode(true));
  if (!dialog.open) dialog.showModal();
}
function turn(by) {
  const visible = cards.map((_, i) => i).filter((i) => !cards[i].hidden);
  show(visible[(visible.indexOf(shown) + by + visible.length) % visible.length]);
}
cards.forEach((card, index) => card.addEventListener("click", () => show(index)));
dialog.querySelector(".before").addEventListener("click", () => turn(-1));
dialog.querySelector(".next").addEventListener("click", () => turn(1));
dialog.querySelector(".close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") turn(-1);
  if (event.key === "ArrowRight") turn(1);
});
