// Filter the table of all claims by its fields.
const form = document.querySelector(".claims-filter");
const rows = [...document.querySelectorAll(".claims-table tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());

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
function reveal() {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (row?.hidden) {
    form.reset();
    filter();
  }
  row?.scrollIntoView();
}

form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", reveal);
filter();
if (location.hash) reveal();
