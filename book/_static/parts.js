// Load a part of a page, which book/_ext/light_pages.py has stored, when it comes near the window, or
// when it is opened. A link to a row of a table loads it at once.
const filled = new Map();

function load(box) {
  const name = box.dataset.part;
  if (filled.has(name)) return filled.get(name);
  const script = document.createElement("script");
  script.src = box.dataset.source;
  filled.set(name, new Promise((resolve) => script.addEventListener("load", resolve)));
  document.head.append(script);
  return filled.get(name);
}

function fillPart(name, content) {
  for (const box of document.querySelectorAll(`[data-part="${name}"]`)) {
    box.innerHTML = content;
    for (const script of box.querySelectorAll("script:not([type])")) {
      const copy = document.createElement("script"); // scripts in innerHTML do not run
      copy.textContent = script.textContent;
      script.replaceWith(copy);
    }
    box.dispatchEvent(new CustomEvent("filled", { bubbles: true }));
  }
}

// Show the row to which the address leads, if a part has it.
async function reveal() {
  const target = decodeURIComponent(location.hash.slice(1));
  if (!target || document.getElementById(target)) return;
  await Promise.all([...document.querySelectorAll("[data-part]")].map(load));
  const row = document.getElementById(target);
  const fold = row?.closest("details");
  if (fold) fold.open = true;
  row?.scrollIntoView();
}

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) load(target);
}, { rootMargin: "300px" });
for (const box of document.querySelectorAll("[data-part]")) observer.observe(box);
window.addEventListener("hashchange", reveal);
reveal();
