// Filter the table of all claims by its fields. The table may come later than the page.
const form = document.querySelector(".claims-filter");
const box = document.querySelector(".claims-box");
let rows = [];
let texts = [];

function filter() {
  const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  rows.forEach((row, index) => {
    const fits =
      (!form.source.value || row.dataset.source === form.source.value) &&
      (!form.verdict.value || row.dataset.status === form.verdict.value) &&
      words.every((word) => texts[index].includes(word));
    row.hidden = !fits;
    shown += fits;
  });
  form.querySelector("output").textContent = `${shown} of ${rows.length} claims`;
}

// A row to which a link leads must not be hidden by a filter that the browser restored.
function showTarget() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (row?.hidden) {
    form.reset();
    filter();
  }
  row?.scrollIntoView();
}

function start() {
  rows = [...box.querySelectorAll("tbody tr")];
  texts = rows.map((row) => row.textContent.toLowerCase());
  if (!rows.length) return;
  filter();
  if (location.hash) showTarget();
}

form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", showTarget);
box.addEventListener("filled", start);
start();
